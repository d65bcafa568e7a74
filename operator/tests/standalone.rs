//! Tests the whole operator in standalone mode: a real directory, real sockets, agents that work and agents that
//! misbehave.
#![expect(clippy::disallowed_methods, reason = "tests measure how long something takes")]
#![expect(clippy::unwrap_used, reason = "a panic fails the test and shows the place")]

mod fake_agent;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use notify::Watcher as _;
use serde_json::Value;
use tokio::{
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_operator::{
    Operator,
    source::{agents::StandaloneAgent, directory::StandaloneInputs},
};
use weir_wire::Snapshot;

use self::fake_agent::{FakeAgent, Manner};

/// The longest time that a test waits for a condition. After it, the test panics.
const PATIENCE: Duration = Duration::from_secs(20);
/// The promise of the operator: a pod that stops answering is reported as drifted within this time, if the operator has
/// processor time.
const DRIFT_BOUND: Duration = Duration::from_secs(5);
/// An operator that was paused for about this long waits for messages that are still unread, see `LATE` and `GRACE` in
/// `link/machine.rs`.
const LONG_PAUSE: Duration = Duration::from_millis(400);
const GRACE: Duration = Duration::from_secs(2);

struct Running {
    directory: tempfile::TempDir,
    _stop: DropGuard,
    task: JoinHandle<()>,
    metrics: weir_operator::metrics::Metrics,
}

impl Running {
    fn start(directory: tempfile::TempDir, agents: &[&FakeAgent]) -> Self {
        let agents = agents.iter().map(|agent| StandaloneAgent { url: agent.url.clone(), labels: [].into() }).collect();
        let inputs = StandaloneInputs { policies: directory.path().to_owned(), agents, ..StandaloneInputs::default() };
        Self::start_at(directory, &inputs)
    }

    fn start_at(directory: tempfile::TempDir, inputs: &StandaloneInputs) -> Self {
        let operator = Operator::standalone(inputs, Arc::default()).unwrap();
        let operator = operator.traffic_interval(Duration::from_millis(100));
        let metrics = operator.metrics();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { operator.run(None, stopped).await.unwrap() });
        Self { directory, _stop: stop.drop_guard(), task, metrics }
    }

    /// Stops the operator; returns its directory.
    async fn stop(self) -> tempfile::TempDir {
        let Self { directory, _stop, task, .. } = self;
        drop(_stop);
        soon("the end", task).await.unwrap();
        directory
    }

    fn write(&self, requests: u32) {
        write_policy(self.directory.path(), requests);
    }

    /// Waits for a status document that satisfies `wanted`.
    async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.until_in("checkout.status.yaml", what, wanted).await
    }

    /// Waits for a line of the metrics. A status is counted once it is on the disk, which is later than the time from
    /// which it can be read.
    async fn until_metric(&self, line: &str) {
        until(line, || self.metrics.render(Duration::ZERO).contains(line)).await;
    }

    /// Waits for a document in another status file.
    async fn until_in(&self, file: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = self.directory.path().join(file);
        let mut last = Value::Null;
        let found = timeout(PATIENCE, async {
            loop {
                if let Ok(text) = fs::read_to_string(&path) {
                    last = serde_yaml::from_str(&text).expect("a status file is never half written");
                    if wanted(&last) {
                        return;
                    }
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let found = found.await;
        assert!(found.is_ok(), "waited for {what}, the status is {last:#}");
        last
    }
}

fn write_policy(directory: &Path, requests: u32) {
    fs::write(directory.join("checkout.yaml"), policy("checkout", &requests.to_string())).unwrap();
}

fn policy(name: &str, requests: &str) -> String {
    format!(
        "apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec:\n  selector: {{matchLabels: {{app: web}}}}\n  rules:\n  - name: all\n    limits:\n    \
         - {{name: second, requests: {requests}, per: 1s}}\n"
    )
}

fn requests(snapshot: &Snapshot) -> Option<u64> {
    Some(snapshot.policies.first()?.rules[0].limits[0].requests)
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    soon(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn enforced(status: &Value) -> (&str, &str) {
    let conditions = status["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition["type"] == "Enforced");
    condition.map_or(("", ""), |c| (c["status"].as_str().unwrap(), c["reason"].as_str().unwrap()))
}

fn count(status: &Value) -> &str {
    status["status"]["summary"]["enforced"].as_str().unwrap_or_default()
}

fn drift(status: &Value) -> Vec<&str> {
    let drifted = status["status"]["enforcement"]["drifted"].as_array().map(Vec::as_slice).unwrap_or_default();
    drifted.iter().map(|drift| drift["reason"].as_str().unwrap()).collect()
}

/// The pauses of this thread, which is also the operator's: the times in which it could not run. Its own work is no pause.
#[derive(Clone, Copy, Default)]
struct Pauses {
    sum: Duration,
    longest: Duration,
}

/// The time for which a processor has run this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

/// Measures the pauses while it exists.
struct Watch {
    pauses: Arc<Mutex<Pauses>>,
    task: JoinHandle<()>,
}

impl Watch {
    fn start() -> Self {
        /// A shorter pause does not delay the operator noticeably.
        const LEAST: Duration = Duration::from_millis(20);
        let pauses = Arc::<Mutex<Pauses>>::default();
        let measured = pauses.clone();
        let task = tokio::spawn(async move {
            loop {
                let (due, worked) = (Instant::now() + Duration::from_millis(10), processor_time());
                tokio::time::sleep_until(due).await;
                let pause = due.elapsed().saturating_sub(processor_time() - worked);
                if pause > LEAST {
                    let mut pauses = measured.lock().unwrap();
                    *pauses = Pauses { sum: pauses.sum + pause, longest: pauses.longest.max(pause) };
                }
            }
        });
        Self { pauses, task }
    }

    /// The time in which the operator must keep a promise. Without pauses, it is that of the promise.
    fn bound(&self, promise: Duration) -> Duration {
        let Pauses { sum, longest } = *self.pauses.lock().unwrap();
        promise + sum + if longest > LONG_PAUSE { GRACE } else { Duration::ZERO }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The files that are removed from a directory, in order. A file that another one replaces is not removed.
struct Removals {
    removed: mpsc::Receiver<PathBuf>,
    _watcher: notify::RecommendedWatcher,
}

impl Removals {
    fn watch(directory: &Path) -> Self {
        let (sender, removed) = mpsc::channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let event = event.unwrap();
            if event.kind.is_remove() {
                event.paths.into_iter().for_each(|path| drop(sender.send(path)));
            }
        })
        .unwrap();
        watcher.watch(directory, notify::RecursiveMode::NonRecursive).unwrap();
        Self { removed, _watcher: watcher }
    }

    fn next(&self) -> PathBuf {
        self.removed.recv_timeout(PATIENCE).unwrap()
    }
}

/// A directory in memory, if there is one: a disk with much other work takes seconds to write a status.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

async fn started(requests: u32, agents: &[&FakeAgent]) -> Running {
    let directory = directory();
    write_policy(directory.path(), requests);
    Running::start(directory, agents)
}

#[tokio::test]
async fn a_change_reaches_every_agent_and_the_status_says_so() {
    let (a, b) = (FakeAgent::start().await, FakeAgent::start().await);
    let operator = started(50, &[&a, &b]).await;
    let first = operator.until("2/2", |status| count(status) == "2/2").await;
    assert_eq!(enforced(&first), ("True", "Enforced"));
    assert_eq!(first["metadata"]["name"], "checkout");

    let (before, watch) = (Instant::now(), Watch::start());
    operator.write(100);
    for agent in [&a, &b] {
        soon("the change", agent.until(|snapshot| requests(snapshot) == Some(100))).await;
    }
    let (took, most) = (before.elapsed(), watch.bound(Duration::from_secs(2)));
    assert!(took < most, "the change took {took:?}, and more than {most:?}");
    let second = operator.until("generation 2", |s| s["status"]["observedGeneration"] == 2 && count(s) == "2/2").await;
    assert_ne!(first["status"]["revision"], second["status"]["revision"]);
    let [first, second] = [first, second].map(|it| it["status"]["conditions"][1]["lastTransitionTime"].clone());
    assert_eq!(first, second, "the condition Enforced must not change");
}

#[tokio::test]
async fn misbehaving_agents_show_as_drift_in_time_and_affect_no_other() {
    let good = FakeAgent::start().await;
    for manner in
        [Manner::Silent, Manner::Garbage, Manner::Endless, Manner::Closing, Manner::Trickling, Manner::Slow(PATIENCE)]
    {
        let bad = FakeAgent::start().await;
        let operator = started(50, &[&good, &bad]).await;
        operator.until("2/2", |status| count(status) == "2/2").await;

        let (before, watch) = (Instant::now(), Watch::start());
        bad.set(manner);
        let status = operator.until("drift", |status| count(status) == "1/2").await;
        let (took, most) = (before.elapsed(), watch.bound(DRIFT_BOUND));
        assert!(took < most, "{manner:?} showed after {took:?}, and not within {most:?}");
        assert_eq!((enforced(&status), drift(&status)), (("False", "Drifted"), vec!["Unreachable"]), "{manner:?}");

        operator.write(70);
        soon("the change", good.until(|snapshot| requests(snapshot) == Some(70))).await;
        bad.set(Manner::Good);
        operator.until("2/2 again", |s| count(s) == "2/2" && s["status"]["observedGeneration"] == 2).await;
        assert_eq!(requests(&bad.in_force().unwrap()), Some(70), "{manner:?}");
    }
}

#[tokio::test]
async fn a_deleted_policy_is_removed_from_agents_with_its_status() {
    let agent = FakeAgent::start().await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    fs::remove_file(operator.directory.path().join("checkout.yaml")).unwrap();
    soon("emptiness", agent.until(|snapshot| snapshot.policies.is_empty())).await;
    let path = operator.directory.path().join("checkout.status.yaml");
    until("the removal of the status", || !path.exists()).await;
}

/// Returns true if the limit has the wanted number, or if there is no policy.
fn requests_or_empty(snapshot: &Snapshot, wanted: u64) -> bool {
    snapshot.policies.is_empty() || requests(snapshot) == Some(wanted)
}

#[tokio::test]
async fn a_never_valid_file_affects_no_other_and_has_a_status() {
    let agent = FakeAgent::start().await;
    let directory = tempfile::tempdir().unwrap();
    write_policy(directory.path(), 50);
    fs::write(directory.path().join("bad.yaml"), policy("bad", "0")).unwrap();
    fs::write(directory.path().join("worse.yaml"), "a: [").unwrap();
    let operator = Running::start(directory, &[&agent]);
    soon("the good one", agent.until(|snapshot| requests(snapshot) == Some(50))).await;
    for (file, name, message) in [
        ("bad.status.yaml", "bad", "spec.rules[0].limits[0].requests"),
        ("worse.status.yaml", "worse.yaml", "unclosed bracket"),
    ] {
        let status = operator.until_in(file, "Invalid", |status| enforced(status).1 == "Invalid").await;
        assert_eq!(status["metadata"]["name"], name);
        let told = status["status"]["conditions"][0]["message"].as_str().unwrap();
        assert!(told.contains(message), "{told}");
    }
    for line in [
        "weir_operator_policy_files{state=\"good\"} 1",
        "weir_operator_policy_files{state=\"broken\"} 2",
        "weir_operator_policies{accepted=\"false\"} 2",
    ] {
        operator.until_metric(line).await;
    }
    fs::write(operator.directory.path().join("worse.yaml"), policy("worse", "7")).unwrap();
    soon("the fixed one", agent.until(|snapshot| snapshot.policies.len() == 2)).await;
}

#[tokio::test]
async fn a_file_broken_at_the_start_keeps_its_last_good_content() {
    let agent = FakeAgent::start().await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    operator.write(60);
    operator.until("60", |s| count(s) == "1/1" && s["status"]["observedGeneration"] == 2).await;
    let directory = operator.stop().await;
    for (left, generation) in [(policy("checkout", "0"), 3), (String::new(), 3), ("a: [".to_owned(), 3)] {
        fs::write(directory.path().join("checkout.yaml"), &left).unwrap();
        fs::write(directory.path().join("other.yaml"), policy("other", "9")).unwrap();
        // A new agent has no rules, so all its rules in force come from this operator.
        let fresh = FakeAgent::start().await;
        let copy = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(directory.path()).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
        let operator = Running::start(copy, &[&fresh]);
        soon("both", fresh.until(|snapshot| snapshot.policies.len() == 2)).await;
        assert_eq!(requests(&fresh.in_force().unwrap()), Some(60), "{left:?}");
        let status = operator.until("Invalid", |s| s["status"]["conditions"][0]["reason"] == "Invalid").await;
        assert_eq!(status["status"]["observedGeneration"], generation, "{left:?}");
        assert_eq!(status["status"]["lastKnownGood"]["generation"], 2, "{left:?}");
        assert_eq!(fresh.puts(), 1, "{left:?}: its limits were missing for a short time");
    }
}

fn store(more: &str) -> String {
    format!(
        "apiVersion: weir.dev/v1alpha1\nkind: RateLimitStore\nmetadata: {{name: limits, namespace: shop}}\n\
         spec: {{memcached: {{servers: [\"127.0.0.1:9\"]{more}}}}}\n"
    )
}

fn has_stored_spec(status: &Value) -> bool {
    status["status"]["lastKnownGood"]["spec"].is_string()
}

/// Returns a directory in which an operator has stored the status of a policy of scope Shared and of its store.
async fn with_store(agent: &FakeAgent) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let shared = "- name: all\n    scope: Shared\n    shared: {storeRef: {name: limits}}";
    let policy = policy("checkout", "50").replace("- name: all", shared);
    assert!(policy.contains("Shared"), "{policy}");
    fs::write(directory.path().join("checkout.yaml"), &policy).unwrap();
    fs::write(directory.path().join("stores.yaml"), store("")).unwrap();
    let operator = Running::start(directory, &[agent]);
    soon("the policy", agent.until(|snapshot| requests(snapshot) == Some(50))).await;
    operator.until("1/1", |status| count(status) == "1/1" && has_stored_spec(status)).await;
    operator.until_in("stores.status.yaml", "the store", has_stored_spec).await;
    operator.stop().await
}

/// Without its store, a policy of scope Shared does not compile.
#[tokio::test]
async fn a_store_in_a_file_broken_at_the_start_is_kept() {
    let agent = FakeAgent::start().await;
    let directory = with_store(&agent).await;

    for file in ["stores.yaml", "checkout.yaml"] {
        fs::write(directory.path().join(file), "a: [").unwrap();
    }
    let fresh = FakeAgent::start().await;
    let operator = Running::start(directory, &[&fresh]);
    soon("the policy again", fresh.until(|snapshot| requests(snapshot) == Some(50))).await;
    operator.until_metric("weir_operator_policy_files{state=\"kept\"} 2").await;
    assert_eq!(fresh.puts(), 1, "its limits were missing for a short time");
}

/// An operator of another version has written the file's policy and its status, for example before a rollback.
#[tokio::test]
async fn agents_keep_a_policy_that_only_another_operator_can_read_or_compile() {
    let condition = "match: [{predicate: newer(request.path)}]";
    for (of_status, of_policy) in [
        (["\"requests\":50", "\"requests\":50,\"newer\":1"], ["50", "50, newer: 1"]),
        (
            ["\"limits\":", "\"match\":[{\"predicate\":\"newer(request.path)\"}],\"limits\":"],
            ["- name: all", &format!("- name: all\n    {condition}")],
        ),
        (["\"requests\":50", "\"requests\":9000000000"], ["50", "9000000000"]),
    ] {
        let agent = FakeAgent::start().await;
        let operator = started(50, &[&agent]).await;
        operator.until("1/1", |status| count(status) == "1/1").await;
        let directory = operator.stop().await;
        let status = directory.path().join("checkout.status.yaml");
        let text = fs::read_to_string(&status).unwrap();
        let other = text.replace(of_status[0], of_status[1]);
        assert_ne!(text, other, "the status must store the spec");
        fs::write(&status, other).unwrap();
        let text = policy("checkout", "50").replace(of_policy[0], of_policy[1]);
        fs::write(directory.path().join("checkout.yaml"), text).unwrap();
        fs::write(directory.path().join("other.yaml"), policy("other", "9")).unwrap();

        let (before, fresh) = (agent.puts(), FakeAgent::start().await);
        let (removals, marker) = (Removals::watch(directory.path()), directory.path().join("marker"));
        let operator = Running::start(directory, &[&agent, &fresh]);
        let snapshot = soon("the other policy", fresh.until(|snapshot| !snapshot.policies.is_empty())).await;
        assert_eq!(snapshot.policies.iter().map(|policy| &*policy.name).collect::<Vec<_>>(), ["other"]);
        let is_outdated = |status: &Value| count(status) == "1/2" && drift(status) == ["Outdated"];
        operator.until_in("other.status.yaml", "1/2", is_outdated).await;
        let status = operator.until("too old", |status| enforced(status) == ("False", "Invalid")).await;
        let kept = &status["status"]["lastKnownGood"];
        assert!(kept["spec"].as_str().is_some_and(|spec| spec.contains(of_status[1])), "{status:#}");
        assert_eq!((agent.puts(), requests(&agent.in_force().unwrap())), (before, Some(50)), "{of_status:?}");
        fs::write(&marker, "").unwrap();
        fs::remove_file(&marker).unwrap();
        assert_eq!(removals.next(), marker, "the status was removed for a moment");

        operator.write(60);
        soon("both policies", agent.until(|snapshot| snapshot.policies.len() == 2)).await;
        operator.until("2/2", |status| count(status) == "2/2").await;
    }
}

/// The same for a store: the policy is readable, and the file of the store is not.
#[tokio::test]
async fn agents_keep_a_policy_of_a_store_that_only_another_operator_can_read() {
    let agent = FakeAgent::start().await;
    let directory = with_store(&agent).await;
    let status = directory.path().join("stores.status.yaml");
    let text = fs::read_to_string(&status).unwrap();
    let newer = text.replace("\"servers\"", "\"newer\":1,\"servers\"");
    assert_ne!(text, newer, "the status must store the spec");
    fs::write(&status, newer).unwrap();
    fs::write(directory.path().join("stores.yaml"), store(", newer: 1")).unwrap();
    let (before, fresh) = (agent.puts(), FakeAgent::start().await);
    let operator = Running::start(directory, &[&agent, &fresh]);
    let status = operator.until("too old", |status| enforced(status) == ("False", "Invalid")).await;
    assert!(has_stored_spec(&status), "{status:#}");
    assert_eq!((agent.puts(), requests(&agent.in_force().unwrap())), (before, Some(50)));
    fs::write(operator.directory.path().join("stores.yaml"), store("")).unwrap();
    soon("the policy", fresh.until(|snapshot| requests(snapshot) == Some(50))).await;
    operator.until("2/2", |status| count(status) == "2/2").await;
}

#[tokio::test]
async fn a_volume_that_is_not_mounted_at_a_start_takes_no_limit_away() {
    let (agent, state) = (FakeAgent::start().await, tempfile::tempdir().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let inputs = |policies: &Path, agent: &FakeAgent| StandaloneInputs {
        policies: policies.to_owned(),
        state: Some(state.path().to_owned()),
        agents: vec![agent.url.parse().unwrap()],
        ..StandaloneInputs::default()
    };
    write_policy(directory.path(), 50);
    let first = inputs(directory.path(), &agent);
    let operator = Running::start_at(directory, &first);
    soon("the policy", agent.until(|snapshot| requests(snapshot) == Some(50))).await;
    let has_status =
        || fs::read_to_string(state.path().join("checkout.status.yaml")).is_ok_and(|it| it.contains("lastKnownGood"));
    until("the status", has_status).await;
    let directory = operator.stop().await;

    // The mount point has no volume, and the agent has no rules.
    let (fresh, mount) = (FakeAgent::start().await, tempfile::tempdir().unwrap());
    let second = inputs(mount.path(), &fresh);
    let operator = Running::start_at(mount, &second);
    soon("the limits from before", fresh.until(|snapshot| requests(snapshot) == Some(50))).await;
    operator.until_metric("weir_operator_policy_files{state=\"kept\"} 1").await;
    assert!(has_status());

    // The volume is mounted.
    fs::copy(directory.path().join("checkout.yaml"), operator.directory.path().join("checkout.yaml")).unwrap();
    operator.until_metric("weir_operator_policy_files{state=\"good\"} 1").await;
    assert_eq!(fresh.puts(), 1, "its limits were missing for a short time");
    fs::remove_file(operator.directory.path().join("checkout.yaml")).unwrap();
    soon("the end of the policy", fresh.until(|snapshot| snapshot.policies.is_empty())).await;
}

#[tokio::test]
async fn statuses_have_their_own_directory_and_files_of_one_stem_share_one() {
    let agent = FakeAgent::start().await;
    let (directory, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(directory.path().join("team")).unwrap();
    for (file, name) in [("a.yaml", "a"), ("a.yml", "b"), ("team/a.yaml", "c"), (".hidden.yaml", "d")] {
        fs::write(directory.path().join(file), policy(name, "5")).unwrap();
    }
    let inputs = StandaloneInputs {
        policies: directory.path().to_owned(),
        state: Some(state.path().join("below")),
        recursive: true,
        agents: vec![agent.url.parse().unwrap()],
        ..StandaloneInputs::default()
    };
    let operator = Running::start_at(directory, &inputs);
    soon("all", agent.until(|snapshot| snapshot.policies.len() == 3)).await;
    let names = |file: &str| -> Vec<String> {
        let text = fs::read_to_string(state.path().join("below").join(file)).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.strip_prefix("  name: "));
        names.map(ToOwned::to_owned).collect()
    };
    until("every status", || names("a.status.yaml") == ["a", "b"] && names("team/a.status.yaml") == ["c"]).await;
    let left: Vec<_> = fs::read_dir(operator.directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

/// The mount of a ConfigMap contains links into a directory that is replaced by renaming a link.
#[tokio::test]
async fn a_mounted_config_map_is_followed() {
    let agent = FakeAgent::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let mount = move |version: &str, requests: u32| {
        let below = path.join(version);
        fs::create_dir(&below).unwrap();
        fs::write(below.join("checkout.yaml"), policy("checkout", &requests.to_string())).unwrap();
        std::os::unix::fs::symlink(version, path.join("..data_tmp")).unwrap();
        fs::rename(path.join("..data_tmp"), path.join("..data")).unwrap();
    };
    mount("..2026_1", 50);
    std::os::unix::fs::symlink("..data/checkout.yaml", directory.path().join("checkout.yaml")).unwrap();
    let operator = Running::start(directory, &[&agent]);
    operator.until("1/1", |status| count(status) == "1/1").await;
    mount("..2026_2", 60);
    let snapshot = soon("the change", agent.until(|snapshot| requests_or_empty(snapshot, 60))).await;
    assert!(!snapshot.policies.is_empty());
    assert_eq!(agent.puts(), 2);
}

/// The files are a pipe without a writer, a directory, a dangling link, a link to itself, a large file, and a file that
/// is not UTF-8.
#[tokio::test]
async fn unreadable_files_do_not_delay_others() {
    let agent = FakeAgent::start().await;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    write_policy(directory.path(), 50);
    let made = Command::new("mkfifo").arg(at("pipe.yaml")).status().unwrap();
    assert!(made.success());
    fs::create_dir(at("directory.yaml")).unwrap();
    std::os::unix::fs::symlink("nothing", at("nothing.yaml")).unwrap();
    std::os::unix::fs::symlink("itself.yaml", at("itself.yaml")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("zero.yaml")).unwrap();
    fs::write(at("latin.yaml"), b"a: \xe9\n").unwrap();
    fs::File::create(at("large.yaml")).unwrap().set_len(1 << 40).unwrap();
    let operator = Running::start(directory, &[&agent]);
    operator.until("1/1", |status| count(status) == "1/1").await;
    operator.write(60);
    soon("the change", agent.until(|snapshot| requests(snapshot) == Some(60))).await;
    let said = operator.until_in("large.status.yaml", "its status", |status| enforced(status).1 == "Invalid").await;
    let message = said["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("is larger than"), "{message}");
}

#[tokio::test]
async fn agents_come_and_go_with_their_file() {
    let (a, b) = (FakeAgent::start().await, FakeAgent::start().await);
    let (directory, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = elsewhere.path().join("agents");
    fs::write(&file, format!("{}\n", a.url)).unwrap();
    write_policy(directory.path(), 50);
    let inputs = StandaloneInputs {
        policies: directory.path().to_owned(),
        agents_file: Some(file.clone()),
        ..StandaloneInputs::default()
    };
    let operator = Running::start_at(directory, &inputs);
    operator.until("1/1", |status| count(status) == "1/1").await;
    fs::write(&file, format!("# both\n{}\n{}\n", a.url, b.url)).unwrap();
    operator.until("2/2", |status| count(status) == "2/2").await;
    // A truncated list removes no agent: both agents still get changes.
    fs::write(&file, "").unwrap();
    operator.write(60);
    for agent in [&a, &b] {
        soon("the change", agent.until(|snapshot| requests(snapshot) == Some(60))).await;
    }
    fs::write(&file, &b.url).unwrap();
    operator.until("1/1 again", |status| count(status) == "1/1").await;
    assert_eq!(requests(&a.in_force().unwrap()), Some(60), "a removed agent keeps its limits");
    let nowhere = StandaloneInputs { agents_file: Some("/nowhere".into()), ..inputs };
    assert!(Operator::standalone(&nowhere, Arc::default()).is_err());
}

#[tokio::test]
async fn it_stops_on_request_and_leaves_agents_unchanged() {
    let agent = FakeAgent::start().await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    for line in [
        "weir_operator_pushes_total{result=\"applied\"} 1",
        "weir_operator_policies{accepted=\"true\"} 1",
        "weir_operator_pods{state=\"enforcing\"} 1",
        "weir_operator_propagation_seconds_count 1",
        "weir_operator_status_writes_total{result=\"ok\"} 1",
    ] {
        operator.until_metric(line).await;
    }
    operator.stop().await;
    assert_eq!(requests(&agent.in_force().unwrap()), Some(50));
}

/// A process of its own: its standard error is a full disk.
#[test]
fn log_lines_that_cannot_be_written_end_nothing() {
    struct Stop(Child);
    impl Drop for Stop {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.yaml"), "a: [").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-operator"));
    command.args(["standalone", "--agent", "http://127.0.0.1:9", "--policies"]).arg(directory.path());
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut operator = Stop(command.stdout(Stdio::piped()).stderr(full).spawn().unwrap());
    let mut first = String::new();
    BufReader::new(operator.0.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("a.yaml:1:4: unclosed bracket"), "{first:?}");
}
