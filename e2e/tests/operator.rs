//! Tests the operator with a real apiserver. The inputs are policies and pods. The outputs are pushes to real agents,
//! the status and Events.
//!
//! There is no kubelet. A test creates the object of a pod and writes its address, which leads to an agent on loopback.

#![expect(clippy::disallowed_methods, reason = "waits for other programs, and measures how long they take")]

mod programs;
mod waiting;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Pod},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::watch,
    time::{sleep, timeout},
};
use weir_api::{DriftReason, RateLimitPolicy, RateLimitPolicyStatus, RateLimitStore};
use weir_testbed::ControlPlane;
use weir_wire::Snapshot;

use self::{
    programs::{Program, build_programs, program},
    relay::Relay,
    waiting::{PATIENCE, found, listening, until},
};

#[path = "operator/availability.rs"]
mod availability;
#[path = "operator/bypassed.rs"]
mod bypassed;
#[path = "operator/edited.rs"]
mod edited;
#[path = "operator/health.rs"]
mod health;
#[path = "operator/identity.rs"]
mod identity;
#[path = "operator/large.rs"]
mod large;
#[path = "operator/many.rs"]
mod many;
#[path = "operator/relay.rs"]
mod relay;
#[path = "operator/replaced.rs"]
mod replaced;
#[path = "operator/rights.rs"]
mod rights;
#[path = "operator/shared.rs"]
mod shared;
#[path = "operator/silent.rs"]
mod silent;
#[path = "operator/struggling.rs"]
mod struggling;
#[path = "operator/versions.rs"]
mod versions;

const NAMESPACE: &str = "shop";
/// The flag for the namespace of the Lease. The namespace `default` always exists.
const LEASE: [&str; 2] = ["--lease-namespace", "default"];
/// The bound for reactions that should take seconds. It is longer for busy machines, but much shorter than a timer with
/// a wrong value would be.
const PROMPTLY: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_policy_from_before_its_pods_to_after_its_end() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;

    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("no pods", |status| enforced(status) == ("False", "NoPods")).await?;

    let mut agents = Vec::new();
    for name in ["a", "b", "c"] {
        agents.push(stage.pod(name).await?);
    }
    let status = stage.until("3/3", |status| count(status) == "3/3").await?;
    ensure!(enforced(&status) == ("True", "Enforced"), "{status:#?}");
    ensure!(condition(&status, "Accepted").is_some_and(|accepted| accepted.status == "True"), "{status:#?}");
    ensure!(status.conditions.iter().all(|condition| condition.observed_generation == Some(1)), "{status:#?}");
    for agent in &agents {
        ensure!(requests(&agent.in_force().await?) == Some(50), "an agent that does not enforce was counted");
    }
    // The operator sends this Event when the first pod enforces the policy. Later pods cause no Event.
    stage.until_event("Enforced", "pods enforce revision").await?;

    let before = Instant::now();
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(80)]}})).await?;
    let patched = stage.until("the patch", |s| s.observed_generation == Some(2) && count(s) == "3/3").await?;
    ensure!(before.elapsed() < PROMPTLY, "took {:?}", before.elapsed());
    ensure!(patched.revision != status.revision, "{patched:#?}");
    for agent in &agents {
        ensure!(requests(&agent.in_force().await?) == Some(80), "an agent that does not enforce was counted");
    }
    stage.until_event("LimitsChanged", "all/second 50 per 1s to 80 per 1s: acknowledged by 3 of 3 pods").await?;

    // A pod whose agent was killed soon stops counting as enforcing.
    let before = Instant::now();
    agents.pop().context("no agent is left")?.kill().await?;
    let drifted = stage.until("drift", |status| count(status) == "2/3").await?;
    println!("drift reported after {:?}", before.elapsed());
    ensure!(before.elapsed() < PROMPTLY, "took {:?}", before.elapsed());
    ensure!(enforced(&drifted) == ("False", "Drifted"), "{drifted:#?}");
    let worst = &drifted.enforcement.as_ref().context("the status has no enforcement")?.drifted;
    ensure!(worst.len() == 1 && worst[0].pod == "c" && worst[0].reason == DriftReason::Unreachable, "{worst:?}");
    stage.until_event("Drifted", "2 of 3 pods").await?;
    let immediately = DeleteParams::default().grace_period(0);
    stage.api::<Pod>().delete("c", &immediately).await?;
    stage.until("2/2", |status| count(status) == "2/2").await?;

    // A pod without an agent does not count as enforcing either.
    let bare = json!({"metadata": {"name": "bare", "labels": {"app": "web"}}, "spec": {"containers": [container()]}});
    stage.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(bare)?).await?;
    let status = stage.until("2/3", |status| count(status) == "2/3").await?;
    ensure!(status.enforcement.as_ref().is_some_and(|e| e.drifted[0].reason == DriftReason::NoAgent), "{status:#?}");

    stage.api::<RateLimitPolicy>().delete("checkout", &DeleteParams::default()).await?;
    for agent in &agents {
        agent.until("emptiness", |snapshot| snapshot.policies.is_empty()).await?;
    }
    // A policy that cannot be deleted would also block the deletion of its namespace.
    let policies: Api<RateLimitPolicy> = stage.api();
    until("the policy to be gone", async || Ok(policies.get_opt("checkout").await?.is_none())).await
}

#[tokio::test]
async fn targets_come_late_and_an_operator_that_returns_changes_nothing() -> Result<()> {
    let stage = Stage::set().await?;
    let operator = stage.operator()?;
    let agent = stage.pod("a").await?;

    let target = json!({"targetRefs": [{"kind": "Deployment", "name": "web"}]});
    stage.create_policy("checkout", &target, 50).await?;
    let status = stage.until("no target", |status| enforced(status) == ("False", "TargetNotFound")).await?;
    ensure!(condition(&status, "Accepted").is_some_and(|accepted| accepted.reason == "TargetNotFound"), "{status:#?}");

    let labels = json!({"app": "web"});
    let deployment = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container()]}}}});
    stage.api::<Deployment>().create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;
    let before = stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;

    operator.kill().await?;
    ensure!(requests(&agent.in_force().await?) == Some(50), "the limit was lost with the operator");
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    let before_sequence = agent.in_force().await?.context("no snapshot is in force")?.sequence;

    let _operator = stage.operator()?;
    let after = stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "1/1").await?;
    let in_force = agent.in_force().await?.context("no snapshot is in force")?;
    ensure!(requests(&Some(in_force.clone())) == Some(70) && in_force.sequence > before_sequence, "{in_force:?}");
    let flipped =
        |status: &RateLimitPolicyStatus| condition(status, "Enforced").map(|c| c.last_transition_time.clone());
    ensure!(flipped(&before) == flipped(&after), "Enforced changed, although every pod was enforcing all the time");
    Ok(())
}

#[tokio::test]
async fn a_status_edited_by_hand_is_repaired_and_then_left_alone() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let agent = Agent::start(&stage.files.path().join("a")).await?;
    let relay = Relay::to(&agent).await?;
    stage.pod_object("a", &relay.port).await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let before = stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;

    // A part of the last edit stays: the list item belongs to another field manager. The operator must not write
    // the status repeatedly because of it.
    let ghost = json!([{"pod": "ghost", "reason": "NoAgent"}]);
    for edit in [
        json!({"summary": {"enforced": "99/99"}}),
        json!({"summary": null, "conditions": null}),
        json!({"summary": {"enforced": "99/99"}, "enforcement": {"drifted": ghost}}),
    ] {
        let edited = Instant::now();
        stage.edit_status(&edit).await?;
        let repaired = stage
            .until("the repaired status", |status| count(status) == "1/1" && enforced(status) == ("True", "Enforced"))
            .await?;
        ensure!(edited.elapsed() < PROMPTLY, "took {:?}", edited.elapsed());
        ensure!(repaired.conditions == before.conditions, "{repaired:#?}");
    }

    // After two statuses, the operator has processed the last edit. From then on, it must write nothing.
    relay.told(2).await?;
    let rest = (stage.version().await?, stage.status_writes().await?);
    relay.told(10).await?;
    let after = (stage.version().await?, stage.status_writes().await?);
    ensure!(rest == after, "the status was written without a change: {rest:?} became {after:?}");
    ensure!(rest.1 > 0, "the apiserver counted no status writes");
    Ok(())
}

/// The apiserver cannot parse regular expressions and predicates, so the operator checks them. The last valid limits
/// stay in force.
#[tokio::test]
async fn an_expression_that_does_not_parse_is_told_with_its_place() -> Result<()> {
    let stage = Stage::set().await?;
    let _operator = stage.operator()?;
    let agent = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let good = stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;

    let entry = json!([{"pathRegexes": ["^/api", "^/(v1"]}, {"predicate": "request.verb == 'GET'"}]);
    let mut bad = rule(80);
    bad["match"] = entry;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [bad]}})).await?;
    let status = stage.until("Invalid", |status| enforced(status) == ("False", "Invalid")).await?;
    let accepted = condition(&status, "Accepted").context("Accepted")?;
    ensure!((accepted.status.as_str(), accepted.reason.as_str()) == ("False", "Invalid"), "{accepted:?}");
    for part in [
        "spec.rules[0].match[0].pathRegexes[1]: \"^/(v1\" is not a regular expression: unclosed group",
        "spec.rules[0].match[1].predicate: reads request.verb, which does not exist: a request has method, host",
    ] {
        ensure!(accepted.message.contains(part), "{part:?} is not in {:?}", accepted.message);
    }
    ensure!(status.revision == good.revision && requests(&agent.in_force().await?) == Some(50), "{status:#?}");
    Ok(())
}

fn selector() -> Value {
    json!({"selector": {"matchLabels": {"app": "web"}}})
}

fn rule(requests: u32) -> Value {
    json!({"name": "all", "limits": [{"name": "second", "requests": requests, "per": "1s"}]})
}

fn container() -> Value {
    json!({"name": "app", "image": "none"})
}

fn condition<'a>(status: &'a RateLimitPolicyStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}

fn enforced(status: &RateLimitPolicyStatus) -> (&str, &str) {
    condition(status, "Enforced").map_or(("", ""), |condition| (&condition.status, &condition.reason))
}

fn count(status: &RateLimitPolicyStatus) -> &str {
    status.summary.as_ref().map_or("", |summary| &summary.enforced)
}

fn requests(snapshot: &Option<Snapshot>) -> Option<u64> {
    Some(snapshot.as_ref()?.policies.first()?.rules[0].limits[0].requests)
}

/// A control plane with the definition and a namespace.
struct Stage {
    control_plane: ControlPlane,
    files: TempDir,
}

impl Stage {
    async fn set() -> Result<Self> {
        build_programs().await?;
        let control_plane = ControlPlane::start().await?;
        control_plane.install_crd().await?;
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::<Namespace>::all(control_plane.client()).create(&PostParams::default(), &namespace).await?;
        Ok(Self { control_plane, files: tempfile::tempdir()? })
    }

    fn client(&self) -> Client {
        self.control_plane.client()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client(), NAMESPACE)
    }

    fn operator(&self) -> Result<Program> {
        let mut command = Command::new(program("weir-operator")?);
        command
            .args(["run", "--telemetry", "127.0.0.1:0"])
            .args(LEASE)
            .env("KUBECONFIG", self.control_plane.kubeconfig());
        Program::start(command)
    }

    /// Creates a pod with a real agent.
    async fn pod(&self, name: &str) -> Result<Agent> {
        let agent = Agent::start(&self.files.path().join(name)).await?;
        self.pod_object(name, agent.port()?).await?;
        Ok(agent)
    }

    /// Creates a pod whose agent listens on this port of loopback.
    async fn pod_object(&self, name: &str, port: &str) -> Result<()> {
        self.pod_of(name, port, &json!([container()])).await
    }

    /// Creates a pod with these containers, whose agent listens on this port of loopback.
    async fn pod_of(&self, name: &str, port: &str, containers: &Value) -> Result<()> {
        let pods: Api<Pod> = self.api();
        let pod = json!({
            "metadata": {
                "name": name,
                "labels": {"app": "web", "weir.dev/agent": "enabled"},
                "annotations": {"weir.dev/control-port": port},
            },
            "spec": {"containers": containers},
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let address = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "phase": "Running"}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&address)).await?;
        Ok(())
    }

    async fn create_policy(&self, name: &str, target: &Value, requests: u32) -> Result<()> {
        let mut spec = json!({"rules": [rule(requests)]});
        spec.as_object_mut().context("not an object")?.extend(target.as_object().context("not an object")?.clone());
        let policy = RateLimitPolicy::new(name, serde_json::from_value(spec)?);
        self.api().create(&PostParams::default(), &policy).await?;
        Ok(())
    }

    async fn create_store(&self, name: &str) -> Result<()> {
        let spec = serde_json::from_value(json!({"redis": {"endpoints": ["redis:6379"]}}))?;
        self.api().create(&PostParams::default(), &RateLimitStore::new(name, spec)).await?;
        Ok(())
    }

    /// Waits until the status of a store has this reason.
    async fn until_store(&self, name: &str, reason: &str) -> Result<()> {
        let stores: Api<RateLimitStore> = self.api();
        found(async || {
            let status = stores.get(name).await?.status.unwrap_or_default();
            let is_so = status.conditions.iter().any(|condition| condition.reason == reason);
            Ok(if is_so { Ok(()) } else { Err(format!("waited for {reason}, the status is {status:#?}")) })
        })
        .await
    }

    async fn patch_policy(&self, name: &str, patch: &Value) -> Result<()> {
        let policies: Api<RateLimitPolicy> = self.api();
        policies.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Changes the status like `kubectl patch --subresource=status --type merge`.
    async fn edit_status(&self, status: &Value) -> Result<()> {
        let policies: Api<RateLimitPolicy> = self.api();
        let patch = json!({"status": status});
        policies.patch_status("checkout", &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    async fn version(&self) -> Result<String> {
        let policies: Api<RateLimitPolicy> = self.api();
        policies.get("checkout").await?.metadata.resource_version.context("the policy has no resource version")
    }

    /// The number of status writes that the apiserver has received, including those that changed nothing.
    async fn status_writes(&self) -> Result<u64> {
        let metrics = self.client().request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
        let of_policies = |line: &&str| {
            line.starts_with("apiserver_request_total{")
                && line.contains("resource=\"ratelimitpolicies\"")
                && line.contains("subresource=\"status\"")
        };
        let counts = metrics.lines().filter(of_policies).filter_map(|line| line.rsplit_once(' '));
        counts.map(|(_, count)| Ok(count.parse::<u64>()?)).sum()
    }

    /// Waits until the policy's status satisfies `wanted`.
    async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&RateLimitPolicyStatus) -> bool,
    ) -> Result<RateLimitPolicyStatus> {
        let policies: Api<RateLimitPolicy> = self.api();
        found(async || {
            let status = policies.get("checkout").await?.status.unwrap_or_default();
            Ok(if wanted(&status) { Ok(status) } else { Err(format!("waited for {what}, the status is {status:#?}")) })
        })
        .await
    }

    async fn until_event(&self, reason: &str, note: &str) -> Result<()> {
        let events: Api<Event> = self.api();
        found(async || {
            let events = events.list(&ListParams::default()).await?.items;
            let told: Vec<_> = events.iter().map(|event| (event.reason.as_deref(), event.note.as_deref())).collect();
            let is_told = told.iter().any(|(r, n)| *r == Some(reason) && n.is_some_and(|n| n.contains(note)));
            Ok(if is_told { Ok(()) } else { Err(format!("waited for event {reason} with {note:?}, found {told:#?}")) })
        })
        .await
    }
}

/// A real agent without an app.
struct Agent {
    program: Program,
    control: String,
}

impl Agent {
    async fn start(addresses: &Path) -> Result<Self> {
        Self::with(addresses, &[]).await
    }

    async fn with(addresses: &Path, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(program("weir-agent")?);
        let loopback = "127.0.0.1:0";
        command.args(["--listen", loopback, "--upstream", "127.0.0.1:9", "--control", loopback]);
        command.args(["--telemetry", loopback]).args(args);
        let (program, bound) = listening(command, addresses).await?;
        Ok(Self { program, control: bound["control"].as_str().context("bound")?.to_owned() })
    }

    fn port(&self) -> Result<&str> {
        Ok(self.control.rsplit_once(':').context("the address has no port")?.1)
    }

    async fn kill(self) -> Result<()> {
        self.program.kill().await
    }

    /// The snapshot in force. None before the first one.
    async fn in_force(&self) -> Result<Option<Snapshot>> {
        let (status, body) = request(http::Method::GET, &self.control, "/v1/config").await?;
        if status == http::StatusCode::OK { Ok(Some(serde_json::from_str(&body)?)) } else { Ok(None) }
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Result<()> {
        until(what, async || Ok(self.in_force().await?.as_ref().is_some_and(&wanted))).await
    }
}

/// Sends a request without a body. Returns the status and the body of the response.
async fn request(method: http::Method, address: &str, path: &str) -> Result<(http::StatusCode, String)> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = http::Request::builder().method(method).uri(path).header(http::header::HOST, address);
        let response = sender.send_request(request.body(Empty::<&[u8]>::new())?).await?;
        let status = response.status();
        Ok((status, String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?))
    };
    timeout(PATIENCE, exchange).await?
}
