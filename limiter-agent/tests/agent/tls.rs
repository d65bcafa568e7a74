//! Tests mutual TLS on the control port, with new certificates for each test.

use std::{fs, path::Path, process::Output};

use tempfile::TempDir;

use crate::support::{Agent, App, Authority, TlsClient, binary, json_of, request, snapshot};

pub(super) const OPERATOR: &str = "spiffe://cluster.local/ns/weir-system/sa/weir-operator";

/// A folder with the files for all flags.
pub(super) fn files(agents: &Authority, clients: &Authority) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    agents.issue("agent.test").write(folder.path());
    fs::write(folder.path().join("ca.crt"), clients.pem()).expect("written");
    folder
}

pub(super) fn flags(folder: &Path) -> Vec<String> {
    let path = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let named = [("--control-cert", "tls.crt"), ("--control-key", "tls.key"), ("--control-client-ca", "ca.crt")];
    named.into_iter().flat_map(|(flag, name)| [flag.to_owned(), path(name)]).collect()
}

pub(super) async fn start(folder: &Path, more: &[&str]) -> (App, Agent) {
    let app = App::start().await;
    let flags = flags(folder);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let agent = Agent::start(app.address, &flags);
    (app, agent)
}

fn put(sequence: u64) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    request("PUT", "/v1/config", &[("host", "agent.test")], snapshot(sequence, &[]).to_string())
}

async fn count(agent: &Agent, series: &str) -> u64 {
    let (_, metrics) = agent.telemetry("/metrics").await;
    let value =
        metrics.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{series}\n{metrics}"));
    value.trim().parse().expect("a number")
}

#[tokio::test]
async fn only_clients_of_the_client_authority_are_accepted() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (_app, agent) = start(folder.path(), &[]).await;
    let address = agent.addresses.control;

    let operator = clients.issue("operator.test");
    let mut client = TlsClient::connect(address, &agents, Some(&operator)).await.expect("accepted");
    assert_eq!(client.send(put(1)).await.expect("a response").status(), 200);

    // In TLS 1.3 a client learns only when it reads whether its certificate was accepted.
    let foreign = agents.issue("operator.test");
    for stranger in [None, Some(&foreign)] {
        let answered = match TlsClient::connect(address, &agents, stranger).await {
            Ok(mut client) => client.send(put(2)).await.is_ok(),
            Err(_) => false,
        };
        assert!(!answered);
    }
    let plain = agent.client.try_send(request("PUT", &format!("http://{address}/v1/config"), &[], "{}")).await;
    assert!(plain.is_err(), "plain text is refused");

    assert_eq!(client.send(put(3)).await.expect("a response").status(), 200, "other clients do not disturb this one");
    assert_eq!(count(&agent, "weir_control_handshakes_total{result=\"accepted\"}").await, 1);
    assert_eq!(count(&agent, "weir_control_handshakes_total{result=\"failed\"}").await, 3);
    assert_eq!(count(&agent, "weir_snapshot_sequence").await, 3);
    assert!(agent.logged("a TLS handshake on the control port failed").await.contains("unlogged=0"));
}

#[tokio::test]
async fn a_client_of_another_name_is_refused_with_the_reason() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (_app, agent) = start(folder.path(), &["--control-client-name", OPERATOR]).await;
    for (name, status) in [(OPERATOR, 200), ("spiffe://cluster.local/ns/shop/sa/default", 403), ("operator.test", 403)]
    {
        let identity = clients.issue(name);
        let mut client = TlsClient::connect(agent.addresses.control, &agents, Some(&identity)).await.expect("accepted");
        let answer = client.send(put(1)).await.expect("a response");
        let body = json_of(&answer).to_string();
        assert_eq!(answer.status(), status, "{name}: {body}");
        assert!(status == 200 || (body.contains(name) && body.contains(OPERATOR)), "{name}: {body}");
    }
}

#[tokio::test]
async fn new_files_apply_to_new_connections_and_old_ones_continue() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (_app, agent) = start(folder.path(), &[]).await;
    let operator = clients.issue("operator.test");
    let connect = || TlsClient::connect(agent.addresses.control, &agents, Some(&operator));
    let mut pushing = connect().await.expect("accepted");
    let first = pushing.certificate.clone();

    // Meanwhile this client pushes on its one connection, without a pause.
    let mut sequence = 0;
    let mut push = async || {
        sequence += 1;
        assert_eq!(pushing.send(put(sequence)).await.expect("the connection is kept").status(), 200);
    };
    agents.issue("agent.test").write(folder.path());
    loop {
        push().await;
        if connect().await.expect("there is always a valid pair").certificate != first {
            break;
        }
    }

    let second = connect().await.expect("accepted").certificate;
    fs::write(folder.path().join("tls.crt"), "-----BEGIN NONSENSE-----").expect("written");
    while count(&agent, "weir_control_certificate_reloads_total{result=\"rejected\"}").await == 0 {
        push().await;
    }
    assert_eq!(connect().await.expect("the previous pair stays in use").certificate, second);
    // The agent may have read the files between two writes. The agent rejects such a mixed pair, too, and the error
    // names the key.
    while !agent.logged("control certificates rejected").await.contains("--control-cert") {
        push().await;
    }

    let others = Authority::new();
    agents.issue("agent.test").write(folder.path());
    fs::write(folder.path().join("ca.crt"), others.pem()).expect("written");
    let newcomer = others.issue("operator.test");
    loop {
        push().await;
        let client = TlsClient::connect(agent.addresses.control, &agents, Some(&newcomer)).await;
        if let Ok(mut client) = client
            && client.send(put(1_000_000)).await.is_ok()
        {
            break;
        }
    }
    let late = match connect().await {
        Ok(mut client) => client.send(put(1_000_001)).await.is_ok(),
        Err(_) => false,
    };
    assert!(!late, "clients of a removed authority are refused");
    let expiry = count(&agent, "weir_control_certificate_expiry_timestamp_seconds").await;
    assert!(expiry > 1_700_000_000, "{expiry}");
}

#[test]
fn unusable_files_exit_with_code_2_and_are_named() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let another_key = agents.issue("agent.test").key;
    for (flag, file, content) in [
        ("--control-cert", "tls.crt", None),
        ("--control-cert", "tls.crt", Some("")),
        ("--control-key", "tls.key", Some("nonsense")),
        ("--control-key", "tls.key", Some(another_key.as_str())),
        ("--control-client-ca", "ca.crt", Some("")),
        ("--control-client-ca", "ca.crt", None),
    ] {
        let folder = files(&agents, &clients);
        let file = folder.path().join(file);
        match content {
            Some(content) => fs::write(&file, content).expect("written"),
            None => fs::remove_file(&file).expect("removed"),
        }
        let Output { status, stderr, .. } = binary().args(flags(folder.path())).output().expect("the agent runs");
        let text = String::from_utf8(stderr).expect("text");
        assert_eq!(status.code(), Some(2), "{flag} {content:?}: {text}");
        assert!(text.contains(&format!("{flag} {}", file.display())), "{flag} {content:?}: {text}");
    }
}
