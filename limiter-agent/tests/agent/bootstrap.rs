//! Tests the snapshot that an agent enforces before the first push.

use std::{fs, net::TcpStream, path::Path};

use serde_json::{Value, json};

use crate::support::{Agent, App, binary, daily, json_of, policy, rule, snapshot, with};

fn one_request(sequence: u64) -> Value {
    snapshot(sequence, &[policy("p", &[rule("all", &[daily("d", "TokenBucket", 1)])])])
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

async fn revision(agent: &Agent) -> Value {
    json_of(&agent.control("GET", "/v1/status", "").await)["inForce"]["revision"].clone()
}

async fn info(agent: &Agent) -> String {
    let (_, metrics) = agent.telemetry("/metrics").await;
    metrics.lines().find(|line| line.starts_with("weir_snapshot_info{")).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_first_request_meets_the_bootstrap_snapshot() {
    let app = App::start().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("snapshot.json");
    fs::write(&file, one_request(7).to_string()).expect("written");
    for given in [text(&file), one_request(7).to_string().as_str()] {
        let agent = Agent::start(app.address, &["--bootstrap", given, "--wait-for-config"]);
        assert_eq!(agent.statuses("/", &[], 2).await, [200, 429]);
        assert_eq!(info(&agent).await, r#"weir_snapshot_info{revision="r7",origin="bootstrap"} 1"#);
        assert_eq!(agent.telemetry("/readyz").await.0, 200);
    }
}

#[tokio::test]
async fn a_pushed_snapshot_replaces_the_bootstrap_snapshot_and_keeps_counters() {
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--bootstrap", &one_request(7).to_string()]);
    assert_eq!(agent.statuses("/", &[], 2).await, [200, 429]);
    // The push has an older sequence, and the same revision with different content. The agent accepts it, because the
    // bootstrap snapshot is not from the operator.
    let put =
        with(snapshot(3, &[policy("p", &[rule("all", &[daily("d", "TokenBucket", 2)])])]), json!({"revision": "r7"}));
    agent.apply(&put).await;
    assert_eq!(agent.statuses("/", &[], 1).await, [429], "no fresh burst");
    assert_eq!(info(&agent).await, r#"weir_snapshot_info{revision="r7",origin="pushed"} 1"#);
    // After a push, the agent refuses an older sequence.
    assert_eq!(agent.put(&snapshot(2, &[])).await.status(), 409);
}

#[tokio::test]
async fn the_bootstrap_snapshot_put_again_changes_nothing() {
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--bootstrap", &one_request(7).to_string()]);
    assert_eq!(agent.statuses("/", &[], 2).await, [200, 429]);
    agent.apply(&one_request(7)).await;
    assert_eq!(info(&agent).await, r#"weir_snapshot_info{revision="r7",origin="pushed"} 1"#);
    assert_eq!(agent.statuses("/", &[], 1).await, [429]);
    assert_eq!(agent.put(&one_request(6)).await.status(), 409);
}

#[tokio::test]
async fn with_a_bootstrap_snapshot_that_cannot_be_enforced_nothing_passes() {
    let app = App::start().await;
    let none = rule("all", &[daily("d", "TokenBucket", 0), daily("d", "Surprise", 1)]);
    for (bad, path) in [
        (
            snapshot(1, &[policy("p", &[rule("all", &[daily("d", "TokenBucket", 0)])])]).to_string(),
            "policies[0].rules[0].limits[0].requests",
        ),
        (snapshot(1, &[policy("p", &[none])]).to_string(), "policies[0].rules[0].limits[1].strategy"),
        ("{".to_owned(), "not JSON"),
    ] {
        let agent = Agent::start_until("waiting", app.address, &["--bootstrap", &bad]);
        assert!(agent.logged("cannot start").await.contains("bootstrap"));
        if path.starts_with("policies") {
            assert!(agent.logged("fault").await.contains(path), "{path}");
        }
        assert!(TcpStream::connect(agent.addresses.listen).is_err(), "the proxy port is closed");
        let (status, text) = agent.telemetry("/readyz").await;
        assert_eq!((status, text.starts_with("waiting")), (503, true), "{text}");
        assert_eq!(agent.telemetry("/healthz").await.0, 200);
        agent.apply(&one_request(1)).await;
        agent.logged("ready").await;
        assert_eq!(agent.statuses("/", &[], 2).await, [200, 429]);
        assert_eq!(agent.telemetry("/readyz").await.0, 200);
    }
}

#[tokio::test]
async fn an_agent_that_waits_can_be_stopped() {
    let app = App::start().await;
    let mut agent = Agent::start_until("waiting", app.address, &["--wait-for-config"]);
    assert!(TcpStream::connect(agent.addresses.listen).is_err(), "the proxy port is closed");
    agent.terminate();
    assert_eq!(tokio::task::spawn_blocking(move || agent.wait().code()).await.expect("the agent ended"), Some(0));
}

#[tokio::test]
async fn a_pushed_snapshot_survives_a_restart() {
    let app = App::start().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = folder.path().join("cache.json");
    let bootstrap = one_request(900).to_string();
    let start = || Agent::start(app.address, &["--snapshot-cache", text(&cache), "--bootstrap", &bootstrap]);

    let agent = start();
    assert_eq!(revision(&agent).await, "r900");
    assert!(!cache.exists(), "a bootstrap snapshot is not cached, because it is given at each start");
    agent.apply(&one_request(5)).await;
    assert_eq!(agent.put(&with(snapshot(6, &[]), json!({"wireVersion": 2}))).await.status(), 422);
    drop(agent);

    let agent = start();
    assert_eq!(info(&agent).await, r#"weir_snapshot_info{revision="r5",origin="cache"} 1"#);
    assert_eq!(
        agent.put(&one_request(4)).await.status(),
        409,
        "the cached snapshot was pushed, so its sequence counts"
    );
    drop(agent);

    fs::write(&cache, "half a snap").expect("written");
    let agent = start();
    assert_eq!(revision(&agent).await, "r900", "the bootstrap snapshot replaces an invalid cache");
    assert!(agent.logged("cannot start").await.contains("cache"));
}

#[test]
fn missing_files_exit_with_code_2() {
    for (flag, path) in [("--bootstrap", "/nowhere/snapshot.json"), ("--snapshot-cache", "/nowhere/cache.json")] {
        let output = binary().args([flag, path]).output().expect("the agent runs");
        let text = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("{flag} {path}")), "{text}");
    }
}
