//! The secrets of stores: passwords, authorities and client certificates, in files of the agent.

use std::{
    fs,
    io::ErrorKind,
    net::TcpListener,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{Agent, App, Authority, PATIENCE, Server, binary, daily, json_of, policy, rule, snapshot, with};

/// A store with secrets, and these fields of its backend.
fn store(port: u16, fields: Value) -> Value {
    let redis = json!({"topology": "Standalone", "endpoints": [format!("127.0.0.1:{port}")]});
    json!({"name": "shop/limits", "backend": {"redis": with(redis, fields)}, "secrets": "shop.limits"})
}

/// A policy with a rule that denies `/denied`, and a policy whose rule counts in the store.
fn with_store(sequence: u64, store: &Value, on_loss: &str) -> Value {
    let shared = json!({
        "store": "shop/limits", "counters": "shop/api.all", "stamp": 1, "onStoreLoss": on_loss, "sharers": 4,
    });
    let counted = with(rule("all", &[daily("l", "FixedWindow", 5)]), json!({"shared": shared}));
    let denied = json!({"name": "denied", "action": "Deny", "match": [{"paths": ["/denied"]}]});
    let policies = [policy("api", &[counted]), policy("other", &[denied])];
    with(snapshot(sequence, &policies), json!({"stores": [store]}))
}

/// Waits until the agent reports that the store is reached, or for the error of a store that is not.
async fn until(agent: &Agent, wanted: Result<(), &str>) {
    let mut told = Value::Null;
    let asks = async {
        loop {
            told = json_of(&agent.control("GET", "/v1/status", "").await)["stores"][0].clone();
            let error = told["error"].as_str();
            match (told["reached"].as_bool().expect("a store"), wanted) {
                (true, Ok(())) => return,
                (false, Err(text)) if error.is_some_and(|error| error.contains(text)) => return,
                _ => {}
            }
        }
    };
    let is_told = timeout(PATIENCE, asks).await.is_ok();
    assert!(is_told, "{wanted:?} was never reported, but {told}");
}

fn folder_of(secrets: &Path) -> PathBuf {
    let folder = secrets.join("shop.limits");
    fs::create_dir(&folder).expect("a folder");
    folder
}

/// Sentinel has another password than Redis. The agent reads both from files, which can appear later.
#[tokio::test(flavor = "multi_thread")]
async fn passwords_are_in_files() {
    let secrets = tempfile::tempdir().expect("a temporary folder");
    let redis = Server::redis_with_password("redis").await;
    let sentinel = Server::sentinel(secrets.path(), redis.port).await;
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--store-secrets", &secrets.path().display().to_string()]);
    let store = store(sentinel.port, json!({"topology": "Sentinel", "masterName": "limits", "hasCredentials": true}));
    let folder = folder_of(secrets.path());
    agent.apply(&with_store(1, &store, "FailClosed")).await;
    until(&agent, Err("password: no such file")).await;
    fs::write(folder.join("password"), "redis\n").expect("written");
    until(&agent, Err("NOAUTH")).await;
    fs::write(folder.join("sentinel-password"), "sentinel").expect("written");
    until(&agent, Ok(())).await;
    let statuses = agent.statuses("/", &[], 20).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5);
}

/// The pod was created before the store named its Secrets. The agent never connects without the password, and enforces the
/// rules that need no store.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_whose_secrets_are_not_mounted_is_lost_from_the_start() {
    let redis = TcpListener::bind("127.0.0.1:0").expect("a port");
    redis.set_nonblocking(true).expect("set");
    let port = redis.local_addr().expect("an address").port();
    let secrets = tempfile::tempdir().expect("a temporary folder");
    let of_other_store = ["--store-secrets", &secrets.path().display().to_string()];
    for (flags, error) in [
        (&[][..], "needs the secrets of shop.limits, and this agent runs without --store-secrets"),
        (&of_other_store[..], "password: no such file: add the key password"),
    ] {
        let app = App::start().await;
        let agent = Agent::start(app.address, flags);
        for (sequence, on_loss, status) in [(1, "FailOpen", 200), (2, "FailClosed", 429)] {
            let snapshot = with_store(sequence, &store(port, json!({"hasCredentials": true})), on_loss);
            agent.apply(&snapshot).await;
            until(&agent, Err(error)).await;
            assert_eq!(agent.statuses("/", &[], 10).await, [status; 10], "{on_loss}");
            assert_eq!(agent.get("/denied", &[]).await.status(), 403);
        }
        let connection = redis.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(connection, Err(ErrorKind::WouldBlock), "the agent connected without the password");
    }
}

/// The kubelet can write the certificate later.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_can_require_a_certificate_of_its_clients() {
    let secrets = tempfile::tempdir().expect("a temporary folder");
    let (authority, other) = (Authority::new(), Authority::new());
    let redis = Server::redis_with_tls(&secrets.path().join("server"), &authority).await;
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--store-secrets", &secrets.path().display().to_string()]);
    let folder = folder_of(secrets.path());
    fs::write(folder.join("ca.crt"), authority.pem()).expect("written");
    agent.apply(&with_store(1, &store(redis.port, json!({"tls": true, "hasAuthorities": true})), "FailClosed")).await;
    until(&agent, Err("CertificateRequired; add a client's tls.crt and tls.key")).await;
    other.issue("agent").write(&folder);
    until(&agent, Err("DecryptError")).await;
    fs::remove_file(folder.join("tls.key")).expect("removed");
    until(&agent, Err("tls.key: no such file: add the keys tls.crt and tls.key, or neither,")).await;
    authority.issue("agent").write(&folder);
    until(&agent, Ok(())).await;
    let statuses = agent.statuses("/", &[], 20).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5);
}

/// The images of Weir contain no file with authorities.
#[tokio::test(flavor = "multi_thread")]
async fn the_public_authorities_need_no_file_and_do_not_include_others() {
    let files = tempfile::tempdir().expect("a temporary folder");
    let redis = Server::redis_with_tls(&files.path().join("server"), &Authority::new()).await;
    let app = App::start().await;
    let mut command = binary();
    command.args(["--upstream", &app.address.to_string()]);
    command.env("SSL_CERT_FILE", "/nonexistent").env("SSL_CERT_DIR", "/nonexistent");
    let agent = Agent::run(command, "ready", &[]);
    let mut store = store(redis.port, json!({"tls": true}));
    store.as_object_mut().expect("an object").remove("secrets");
    agent.apply(&with_store(1, &store, "FailClosed")).await;
    until(&agent, Err("UnknownIssuer")).await;
    until(&agent, Err("spec.redis.tls.caSecretRef")).await;
}
