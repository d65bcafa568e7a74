//! The operator in standalone mode, whole: a real directory, real sockets, agents that behave and misbehave.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, and says where")]

mod fake_agent;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fake_agent::{Crowd, FakeAgent, Manner};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use weir_operator::Operator;
use weir_operator::source::directory::StandaloneAgent;
use weir_wire::Snapshot;

/// Every wait ends: with what was waited for, or with a panic.
const PATIENCE: Duration = Duration::from_secs(20);
/// The promise: a pod that stops answering shows within this time.
const DRIFT_BOUND: Duration = Duration::from_secs(5);

struct Running {
    directory: tempfile::TempDir,
    _stop: DropGuard,
    task: JoinHandle<()>,
    metrics: weir_operator::metrics::Metrics,
}

impl Running {
    fn start(directory: tempfile::TempDir, agents: &[&FakeAgent]) -> Self {
        let agents = agents.iter().map(|agent| StandaloneAgent { url: agent.url.clone(), labels: [].into() }).collect();
        let operator = Operator::standalone(directory.path().to_owned(), agents).unwrap();
        let operator = operator.traffic_interval(Duration::from_millis(100));
        let metrics = operator.metrics();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { operator.run(None, stopped).await.unwrap() });
        Self { directory, _stop: stop.drop_guard(), task, metrics }
    }

    fn write(&self, requests: u32) {
        write_policy(self.directory.path(), requests);
    }

    /// Waits for a status document that is as wanted.
    async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = self.directory.path().join("checkout.status.yaml");
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

async fn started(requests: u32, agents: &[&FakeAgent]) -> Running {
    let directory = tempfile::tempdir().unwrap();
    write_policy(directory.path(), requests);
    Running::start(directory, agents)
}

#[tokio::test]
async fn a_change_reaches_every_agent_and_the_status_says_so() {
    let (a, b) = (FakeAgent::start(Manner::Good).await, FakeAgent::start(Manner::Good).await);
    let operator = started(50, &[&a, &b]).await;
    let first = operator.until("2/2", |status| count(status) == "2/2").await;
    assert_eq!(enforced(&first), ("True", "Enforced"));
    assert_eq!(first["metadata"]["name"], "checkout");

    let before = Instant::now();
    operator.write(100);
    for agent in [&a, &b] {
        soon("the change", agent.until(|snapshot| requests(snapshot) == Some(100))).await;
    }
    assert!(before.elapsed() < Duration::from_secs(2), "took {:?}", before.elapsed());
    let second = operator.until("generation 2", |s| s["status"]["observedGeneration"] == 2 && count(s) == "2/2").await;
    assert_ne!(first["status"]["revision"], second["status"]["revision"]);
    assert_eq!(
        first["status"]["conditions"][1]["lastTransitionTime"], second["status"]["conditions"][1]["lastTransitionTime"],
        "Enforced never flipped"
    );
}

#[tokio::test]
async fn an_unchanged_policy_is_pushed_once() {
    let agent = FakeAgent::start(Manner::Good).await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    // Something else that is complete proves that the operator looked at the directory again.
    operator.write(50);
    fs::write(operator.directory.path().join("other.yaml"), policy("other", "7")).unwrap();
    soon("the other policy", agent.until(|snapshot| snapshot.policies.len() == 2)).await;
    assert_eq!(agent.puts(), 2);
}

#[tokio::test]
async fn the_newest_wins_over_a_slow_agent() {
    let agent = FakeAgent::start(Manner::Slow(Duration::from_millis(300))).await;
    let operator = started(50, &[&agent]).await;
    soon("the first", agent.until(|snapshot| requests(snapshot) == Some(50))).await;
    for requests in 51..=80 {
        operator.write(requests);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    operator.write(81);
    soon("the last", agent.until(|snapshot| requests(snapshot) == Some(81))).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    assert!(agent.puts() < 15, "{} pushes for 32 contents: those in between were not skipped", agent.puts());
}

#[tokio::test]
async fn silence_garbage_and_floods_show_as_drift_within_the_bound_and_harm_nobody_else() {
    let good = FakeAgent::start(Manner::Good).await;
    for manner in
        [Manner::Silent, Manner::Garbage, Manner::Endless, Manner::Closing, Manner::Trickling, Manner::Slow(PATIENCE)]
    {
        let bad = FakeAgent::start(Manner::Good).await;
        let operator = started(50, &[&good, &bad]).await;
        operator.until("2/2", |status| count(status) == "2/2").await;

        let before = Instant::now();
        bad.set(manner);
        let status = operator.until("drift", |status| count(status) == "1/2").await;
        assert!(before.elapsed() < DRIFT_BOUND, "{manner:?} showed after {:?}", before.elapsed());
        assert_eq!((enforced(&status), drift(&status)), (("False", "Drifted"), vec!["Unreachable"]), "{manner:?}");

        operator.write(70);
        soon("the change", good.until(|snapshot| requests(snapshot) == Some(70))).await;
        bad.set(Manner::Good);
        operator.until("2/2 again", |s| count(s) == "2/2" && s["status"]["observedGeneration"] == 2).await;
        assert_eq!(requests(&bad.in_force().unwrap()), Some(70), "{manner:?}");
    }
}

/// Side by side, and not all at once: those that answer in one lane, those that did not the last time in another.
#[tokio::test]
async fn so_many_are_pushed_to_at_once_and_no_more() {
    let crowd = Arc::<Crowd>::default();
    let mut agents = Vec::new();
    for _ in 0..200 {
        agents.push(FakeAgent::start_in(Manner::Slow(Duration::from_millis(50)), crowd.clone()).await);
    }
    let operator = started(50, &agents.iter().collect::<Vec<_>>()).await;
    operator.until("200/200", |status| count(status) == "200/200").await;
    operator.write(60);
    for agent in &agents {
        soon("the change", agent.until(|snapshot| requests(snapshot) == Some(60))).await;
    }
    assert!((8..=64 + 32).contains(&crowd.most()), "{} at once", crowd.most());
}

#[tokio::test]
async fn an_agent_that_acknowledges_something_else_has_not_taken_it() {
    let (good, bad) = (FakeAgent::start(Manner::Good).await, FakeAgent::start(Manner::Good).await);
    let operator = started(50, &[&good, &bad]).await;
    operator.until("2/2", |status| count(status) == "2/2").await;
    bad.set(Manner::Lying);
    operator.write(70);
    soon("the change", good.until(|snapshot| requests(snapshot) == Some(70))).await;
    let status = operator.until("drift", |status| drift(status) == ["Refused"]).await;
    assert_eq!((enforced(&status), count(&status)), (("False", "Drifted"), "1/2"));
    let message = status["status"]["enforcement"]["drifted"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("it acknowledged revision \"another\" instead of "), "{message}");
    bad.set(Manner::Good);
    operator.until("2/2 again", |status| count(status) == "2/2").await;
    assert_eq!(requests(&bad.in_force().unwrap()), Some(70));
}

#[tokio::test]
async fn an_address_without_an_agent_is_unreachable() {
    let nobody = FakeAgent::start(Manner::Good).await;
    let operator = {
        let dead = FakeAgent::start(Manner::Good).await;
        let operator = started(50, &[&nobody, &dead]).await;
        operator.until("2/2", |status| count(status) == "2/2").await;
        operator
    };
    let status = operator.until("drift", |status| count(status) == "1/2").await;
    assert_eq!(drift(&status), ["Unreachable"]);
}

#[tokio::test]
async fn a_refusal_shows_with_its_faults() {
    let agent = FakeAgent::start(Manner::Invalid).await;
    let operator = started(50, &[&agent]).await;
    let status = operator.until("drift", |status| drift(status) == ["Refused"]).await;
    assert_eq!((enforced(&status), count(&status)), (("False", "Drifted"), "0/1"));
    let message = &status["status"]["enforcement"]["drifted"][0]["message"];
    assert_eq!(message, "cannot enforce this; policies[0].rules[0]: no");
    agent.set(Manner::Good);
    operator.until("1/1", |status| count(status) == "1/1").await;
    assert!(agent.refused() > 0);
}

#[tokio::test]
async fn an_agent_that_is_ahead_is_overtaken() {
    let agent = FakeAgent::start(Manner::Good).await;
    let ahead = u64::MAX / 2;
    agent.pretend(ahead);
    let operator = started(50, &[&agent]).await;
    let snapshot = soon("the policy", agent.until(|snapshot| requests(snapshot) == Some(50))).await;
    assert_eq!((snapshot.sequence, agent.refused()), (ahead + 1, 1));
    operator.write(60);
    let snapshot = soon("the change", agent.until(|snapshot| requests(snapshot) == Some(60))).await;
    assert_eq!((snapshot.sequence, agent.refused()), (ahead + 2, 1));
}

#[tokio::test]
async fn a_restarted_agent_and_one_that_somebody_else_wrote_to_get_their_policy_back() {
    let agent = FakeAgent::start(Manner::Good).await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    agent.restart();
    soon("the policy", agent.until(|snapshot| requests(snapshot) == Some(50))).await;
    let sequence = agent.in_force().unwrap().sequence;
    agent.pretend(sequence + 1000);
    let snapshot = soon("the policy", agent.until(|snapshot| requests(snapshot) == Some(50))).await;
    assert!(snapshot.sequence > sequence + 1000);
}

#[tokio::test]
async fn a_deleted_policy_leaves_agents_empty_and_takes_its_status_along() {
    let agent = FakeAgent::start(Manner::Good).await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    fs::remove_file(operator.directory.path().join("checkout.yaml")).unwrap();
    soon("emptiness", agent.until(|snapshot| snapshot.policies.is_empty())).await;
    let path = operator.directory.path().join("checkout.status.yaml");
    soon("the status to go", async {
        while path.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_broken_file_keeps_the_last_good_rules_in_force() {
    let agent = FakeAgent::start(Manner::Good).await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    fs::write(operator.directory.path().join("checkout.yaml"), policy("checkout", "0")).unwrap();
    let status = operator.until("Invalid", |status| enforced(status).1 == "Invalid").await;
    assert_eq!(status["status"]["conditions"][0]["reason"], "Invalid");
    let message = status["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(message.contains("spec.rules[0].limits[0].requests"), "{message}");
    assert_eq!((count(&status), agent.puts()), ("1/1", 1));
    operator.write(60);
    soon("the mended policy", agent.until(|snapshot| requests(snapshot) == Some(60))).await;
    operator.until("Accepted", |status| enforced(status) == ("True", "Enforced")).await;
}

#[tokio::test]
async fn an_editor_that_renames_takes_no_limit_away() {
    let agent = FakeAgent::start(Manner::Good).await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    let path = operator.directory.path().join("checkout.yaml");
    let aside = operator.directory.path().join("checkout.yaml~");
    for requests in 60..70 {
        fs::rename(&path, &aside).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        operator.write(requests);
        let snapshot = soon("the edit", agent.until(|s| requests_or_empty(s, requests.into()))).await;
        assert!(!snapshot.policies.is_empty(), "the limits were gone for a moment");
    }
}

/// The wanted number, or a hole.
fn requests_or_empty(snapshot: &Snapshot, wanted: u64) -> bool {
    snapshot.policies.is_empty() || requests(snapshot) == Some(wanted)
}

#[tokio::test]
async fn traffic_ends_up_exactly_as_counted() {
    let (a, b) = (FakeAgent::start(Manner::Good).await, FakeAgent::start(Manner::Good).await);
    let operator = started(50, &[&a, &b]).await;
    operator.until("2/2", |status| count(status) == "2/2").await;
    for step in 1..=5 {
        a.count(step * 1000 + 1, step * 10);
        b.count(step * 1000 + 2, step * 20 + 1);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let status = operator.until("the sum", |s| s["status"]["traffic"]["allowed"] == 10_003).await;
    let traffic = &status["status"]["traffic"];
    assert_eq!((&traffic["limited"], &traffic["window"]), (&Value::from(151), &Value::from("60s")));
    assert_eq!(traffic["byRule"][0]["name"], "all");
    assert_eq!(traffic["byRule"][0]["allowed"], 10_003);
    assert_eq!(status["status"]["summary"]["limited"], "1.4%");
}

#[tokio::test]
async fn it_does_not_start_with_faulty_files() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("bad.yaml"), policy("bad", "0")).unwrap();
    fs::write(directory.path().join("good.yaml"), policy("good", "5")).unwrap();
    let error = Operator::standalone(directory.path().to_owned(), Vec::new()).unwrap_err().to_string();
    assert!(error.contains("bad.yaml: spec.rules[0].limits[0].requests") && !error.contains("good.yaml"), "{error}");
}

#[tokio::test]
async fn it_ends_when_told_to_and_leaves_the_agents_as_they_are() {
    let agent = FakeAgent::start(Manner::Good).await;
    let operator = started(50, &[&agent]).await;
    operator.until("1/1", |status| count(status) == "1/1").await;
    let metrics = operator.metrics.render(Duration::ZERO);
    for line in [
        "weir_operator_pushes_total{result=\"applied\"} 1",
        "weir_operator_policies{accepted=\"true\"} 1",
        "weir_operator_pods{state=\"enforcing\"} 1",
        "weir_operator_propagation_seconds_count 1",
        "weir_operator_status_writes_total{result=\"ok\"} 1",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    let Running { directory: _directory, _stop, task, .. } = operator;
    drop(_stop);
    soon("the end", task).await.unwrap();
    assert_eq!(requests(&agent.in_force().unwrap()), Some(50));
}
