//! Tests the program: its exit codes, its messages about wrong usage, and how it stops.

use std::{net::TcpListener, process::Output};

use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

use crate::support::{Agent, App, binary, snapshot, start};

fn run(args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = binary().args(args).envs(env.iter().copied()).output().expect("the agent runs");
    (status.code(), String::from_utf8(stderr).expect("text"))
}

#[test]
fn wrong_usage_exits_with_code_2_and_names_the_flag() {
    let tls = &["--control-cert", "/nowhere", "--control-key", "/nowhere", "--control-client-ca", "/nowhere"][..];
    let identity =
        &["--identity-url", "http://a", "--identity-ca", "/nowhere", "--identity-token-file", "/nowhere"][..];
    let [plaintext, no_plaintext] = ["true", "false"].map(|value| ("WEIR_CONTROL_PLAINTEXT", value));
    for (args, env, word) in [
        (&["--control", "0.0.0.0:0"][..], &[][..], "--control-plaintext"),
        (&[], &[("WEIR_CONTROL", "192.0.2.1:8481")], "--control-plaintext"),
        (tls, &[plaintext], "--control-plaintext and --control-cert contradict each other"),
        (identity, &[plaintext], "--identity-url and --control-plaintext exclude each other"),
        // The next fault is reported.
        (tls, &[no_plaintext], "--control-cert /nowhere: cannot be read"),
        (identity, &[no_plaintext], "--identity-url http://a: it must be an https URL"),
        (&["--listen", "nonsense"], &[], "--listen"),
        (&[], &[("WEIR_UPSTREAM", "nonsense")], "--upstream"),
        (&["--telemetry", "127.0.0.1"], &[], "--telemetry"),
        (&["--drain", "10"], &[], "--drain"),
        (&["--jwks", "/nowhere/keys.json"], &[], "--jwks /nowhere/keys.json: cannot be read"),
        (&["--jwks-url", "https://a/keys"], &[], "--jwks-ca"),
        (
            &["--jwks-url", "http://a/keys", "--jwks-ca", "/ca"],
            &[],
            "--jwks-url http://a/keys: it must be an https URL",
        ),
        (&["--jwks-url", "https://a/keys", "--jwks-ca", "/nowhere"], &[], "--jwks-ca /nowhere: cannot be read"),
        (&["--jwks-refresh", "0s"], &[], "must be above zero"),
        (&["--surprise"], &[], "--surprise"),
    ] {
        let (code, text) = run(args, env);
        assert_eq!(code, Some(2), "{args:?} {env:?}: {text}");
        assert!(text.contains(word), "{args:?} {env:?}: {text}");
    }
}

#[test]
fn a_taken_port_exits_with_code_1_and_names_the_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    for flag in ["--listen", "--control", "--telemetry"] {
        let mut args = vec![flag, address.as_str()];
        for other in ["--listen", "--control", "--telemetry"].into_iter().filter(|other| *other != flag) {
            args.extend([other, "127.0.0.1:0"]);
        }
        let (code, text) = run(&args, &[]);
        assert_eq!(code, Some(1), "{flag}: {text}");
        assert!(text.contains(&format!("{flag} {address}")), "{flag}: {text}");
    }
}

#[tokio::test]
async fn a_second_agent_does_not_share_the_port() {
    let (_app, agent) = start().await;
    let address = agent.addresses.listen.to_string();
    let args = ["--listen", &address, "--control", "127.0.0.1:0", "--telemetry", "127.0.0.1:0"];
    let (code, text) = run(&args, &[]);
    assert_eq!(code, Some(1), "{text}");
}

#[test]
fn help_explains_every_flag() {
    let Output { status, stdout, .. } = binary().arg("--help").output().expect("the agent runs");
    let help = String::from_utf8(stdout).expect("text");
    assert!(status.success());
    for name in
        ["LISTEN", "UPSTREAM", "CONTROL", "TELEMETRY", "CONTROL_PLAINTEXT", "DRAIN", "ADDRESSES_FILE", "WORKERS"]
    {
        assert!(help.contains(&format!("--{}", name.to_lowercase().replace('_', "-"))), "{name}\n{help}");
        assert!(help.contains(&format!("[env: WEIR_{name}=")), "{name}\n{help}");
    }
}

#[tokio::test]
async fn telemetry_is_up_while_the_agent_is() {
    let (_app, agent) = start().await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(agent.telemetry(path).await.0, 200, "{path}");
    }
}

/// The kubelet runs this program in the agent's container.
#[tokio::test]
async fn a_probe_reports_whether_the_agent_runs_and_is_ready() {
    let app = App::start().await;
    let agent = Agent::start_until("waiting", app.address, &["--wait-for-config"]);
    let telemetry = agent.addresses.telemetry.to_string();
    // The variables of the agent's container are also those of its probes.
    let env = [("WEIR_TELEMETRY", "nonsense")];
    let probe = |path: &str| run(&["probe", "--telemetry", &telemetry, "--path", path], &env);
    assert_eq!(probe("/healthz"), (Some(0), String::new()));
    let (code, text) = probe("/readyz");
    assert!(code == Some(1) && text.starts_with("weir-agent probe: waiting: the port for clients is closed"), "{text}");
    agent.apply(&snapshot(1, &[])).await;
    let ready = async {
        while probe("/readyz") != (Some(0), String::new()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), ready).await.expect("the agent is ready");

    let (code, text) = run(&["probe", "--telemetry", "127.0.0.1:9"], &[]);
    assert!(code == Some(1) && text.starts_with("weir-agent probe: --telemetry 127.0.0.1:9: "), "{text}");
    assert_eq!(probe("/metrics").0, Some(2));
}

/// An app whose response continues until the test ends it.
async fn slow_app() -> (App, mpsc::UnboundedReceiver<mpsc::UnboundedSender<&'static str>>) {
    let (tell, started) = mpsc::unbounded_channel();
    let app = App::serve(move |_| {
        let (send, mut parts) = mpsc::unbounded_channel::<&str>();
        tell.send(send).expect("the test waits");
        async move {
            let stream = futures::stream::poll_fn(move |cx| parts.poll_recv(cx));
            let frames = futures::StreamExt::map(stream, |part| Ok(Frame::data(part.into())));
            Response::new(BodyExt::boxed(StreamBody::new(frames)))
        }
    })
    .await;
    (app, started)
}

#[tokio::test]
async fn sigterm_finishes_what_is_in_flight() {
    let (app, mut started) = slow_app().await;
    let mut agent = Agent::start(app.address, &["--drain", "60s"]);
    let mut idle = agent.connect().await;
    let mut client = agent.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    let response = started.recv().await.expect("the app was asked");
    response.send("first").expect("open");
    let mut answer = vec![0; 17];
    client.read_exact(&mut answer).await.expect("the response began");

    while !agent.telemetry("/metrics").await.1.contains("weir_connections 2\n") {
        tokio::task::yield_now().await;
    }
    agent.terminate();
    // The idle connection is closed immediately, which shows that the drain has begun.
    assert_eq!(idle.read(&mut [0; 1]).await.expect("a clean close"), 0);
    let (status, text) = agent.telemetry("/readyz").await;
    assert_eq!((status, text.starts_with("draining")), (503, true), "{text}");
    assert_eq!(agent.telemetry("/healthz").await.0, 200);
    // The workers do not close their listeners at the same time.
    while TcpStream::connect(agent.addresses.listen).await.is_ok() {
        tokio::task::yield_now().await;
    }

    response.send("last").expect("open");
    drop(response);
    client.read_to_end(&mut answer).await.expect("the response ends, and then the connection");
    let answer = String::from_utf8(answer).expect("text");
    assert!(answer.contains("first") && answer.ends_with("4\r\nlast\r\n0\r\n\r\n"), "{answer}");
    assert_eq!(tokio::task::spawn_blocking(move || agent.wait().code()).await.expect("the agent ended"), Some(0));
}

/// Other programs reload their files on SIGHUP. If the agent ended instead, the app would be unreachable.
#[tokio::test]
async fn sighup_ends_nothing() {
    let (_app, agent) = start().await;
    // An agent that is ready handles signals.
    while agent.telemetry("/readyz").await.0 != 200 {
        tokio::task::yield_now().await;
    }
    agent.hang_up();
    // The kernel delivers signals in the order of their numbers, so the process gets SIGHUP before it continues.
    agent.suspend().await;
    agent.go_on();
    assert_eq!(agent.telemetry("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_drain_ends_in_time() {
    let (app, mut started) = slow_app().await;
    let mut agent = Agent::start(app.address, &["--drain", "100ms"]);
    let mut client = agent.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    let _never_ended = started.recv().await.expect("the app was asked");
    agent.terminate();
    assert_eq!(tokio::task::spawn_blocking(move || agent.wait().code()).await.expect("the agent ended"), Some(0));
}
