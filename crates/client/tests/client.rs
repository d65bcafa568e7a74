//! Tests programs whose requests a layer limits: their control port, their limits, and their errors.

#![expect(clippy::disallowed_methods, reason = "waits until a port is closed")]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream, UdpSocket},
    time::timeout,
};
use tower::ServiceExt;
use weir_channel::{Channel, ChannelError, ToAgent, ToOperator, tag};
use weir_client::{Client, ControlOptions, JwksOptions, Options};
use weir_wire::StatusRequest;

/// The longest wait for any condition. After it, the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(change: impl FnOnce(&mut ControlOptions)) -> Options {
    let mut options = Options::default();
    options.control.control = "127.0.0.1:0".parse().expect("an address");
    change(&mut options.control);
    options
}

/// A snapshot with one rule: a number of requests per day for each address.
fn snapshot(sequence: u64, requests: u64) -> Value {
    let limit =
        json!({"name": "daily", "strategy": "SlidingWindowLog", "requests": requests, "periodMillis": 86_400_000});
    let key = json!([{"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}]);
    let rule = json!({"name": "per-client", "action": "Limit", "key": key, "limits": [limit]});
    let policy = json!({
        "uid": "u", "namespace": "shop", "name": "checkout", "revision": "r", "mode": "Enforce", "rules": [rule],
    });
    let revision = format!("revision-{sequence}");
    json!({"wireVersion": 1, "sequence": sequence, "revision": revision, "policies": [policy]})
}

/// Sends a request to the control port. Returns the status and the body.
async fn control(client: &Client, head: &str, body: &str) -> (u16, Value) {
    let exchange = async {
        let mut stream = TcpStream::connect(client.control()).await.expect("the control port is open");
        let length = body.len();
        let request =
            format!("{head} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.expect("the request is sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).await.expect("a response");
        response
    };
    let response = timeout(PATIENCE, exchange).await.expect("a response in time");
    let (head, body) = response.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_default())
}

async fn put(client: &Client, snapshot: &Value) -> (u16, Value) {
    control(client, "PUT /v1/config", &snapshot.to_string()).await
}

fn app(client: &Client) -> Router {
    Router::new().route("/", get(async || "hello")).layer(client.layer())
}

/// Sends requests from this address, and returns the statuses.
async fn statuses(app: &Router, from: &str, count: usize) -> Vec<u16> {
    let peer = SocketAddr::new(from.parse::<IpAddr>().expect("an address"), 40_000);
    let mut statuses = Vec::new();
    for _ in 0..count {
        let mut request = Request::get("/").body(Body::empty()).expect("a request");
        request.extensions_mut().insert(ConnectInfo(peer));
        statuses.push(app.clone().oneshot(request).await.expect("a response").status().as_u16());
    }
    statuses
}

#[tokio::test]
async fn limits_come_from_the_control_port_and_change_in_place() {
    let client = Client::start(options(|_| {})).await.expect("a control port");
    let app = app(&client);
    client.ready().await;
    assert_eq!(statuses(&app, "192.0.2.1", 2).await, [200, 200], "without rules, every request passes");

    assert_eq!(put(&client, &snapshot(1, 2)).await.0, 200);
    assert_eq!(statuses(&app, "192.0.2.1", 3).await, [200, 200, 429]);
    assert_eq!(statuses(&app, "192.0.2.2", 1).await, [200], "another address has another count");
    assert_eq!(put(&client, &snapshot(2, 3)).await.0, 200);
    assert_eq!(statuses(&app, "192.0.2.1", 2).await, [200, 429], "two of three were used");

    let (_, status) = control(&client, "GET /v1/status", "").await;
    assert_eq!(status["inForce"]["revision"], "revision-2");
    let rule = &status["policies"][0]["rules"][0];
    assert_eq!((&rule["allowed"], &rule["limited"]), (&json!(4), &json!(2)), "{status}");
    let question = json!({"target": "/", "peer": "192.0.2.1"}).to_string();
    let (status, explained) = control(&client, "POST /v1/explain", &question).await;
    assert_eq!((status, &explained["rules"][0]["limit"]["remaining"]), (200, &json!(0)), "{explained}");
    assert_eq!(control(&client, "GET /v1/bans", "").await.0, 200);
    let metrics = client.metrics();
    for line in [
        "weir_requests_total{namespace=\"shop\",policy=\"checkout\",rule=\"per-client\",decision=\"limited\"} 2",
        "weir_snapshot_sequence 2",
        "weir_snapshots_total{result=\"applied\"} 2",
    ] {
        assert!(metrics.lines().any(|it| it == line), "no {line} in\n{metrics}");
    }
}

/// Without TLS, the first byte of a connection selects the channel or HTTP.
#[tokio::test]
async fn a_layer_answers_with_the_body_of_the_rule() {
    let client = Client::start(options(|_| {})).await.expect("a control port");
    let app = app(&client);
    let mut own = snapshot(1, 1);
    let body = "{rule} admits {limit}, {remaining} are left {}";
    own["policies"][0]["rules"][0]["onLimit"] = json!({"status": 429, "headers": "None", "body": body});
    assert_eq!(put(&client, &own).await.0, 200);
    let ask = || app.clone().oneshot(Request::get("/").body(Body::empty()).expect("a request"));
    assert_eq!(ask().await.expect("a response").status(), 200);
    let refused = ask().await.expect("a response");
    let text = axum::body::to_bytes(refused.into_body(), 1_000).await.expect("a body");
    assert_eq!(text, "per-client admits 1, 0 are left {}");
}

#[tokio::test]
async fn the_operator_uses_the_channel_on_the_same_port() {
    let client = Client::start(options(|_| {})).await.expect("a control port");
    let mut channel = Channel::new(TcpStream::connect(client.control()).await.expect("the control port is open"));
    let push = ToAgent::Snapshot(snapshot(1, 2).to_string().into_bytes());
    for message in [ToAgent::Hello, push] {
        channel.send(message.frame().expect("a short message"), PATIENCE).await.expect("the port reads");
    }
    for expected in [tag::STATUS, tag::ACKNOWLEDGEMENT] {
        assert_eq!(timeout(PATIENCE, channel.next()).await.expect("in time").expect("a frame").tag, expected);
    }
    assert_eq!(put(&client, &snapshot(1, 2)).await.0, 200);
    assert_eq!(statuses(&app(&client), "192.0.2.1", 3).await, [200, 200, 429]);
}

/// Lowering a snapshot can take long. Here it waits for the only blocking thread.
#[test]
fn a_snapshot_that_is_being_lowered_delays_only_the_next_one() {
    let fleet = |sequence: u64| {
        let mut snapshot = snapshot(sequence, 2);
        snapshot["policies"][0]["rules"][0]["shared"] = json!({
            "store": "operator", "counters": "shop/checkout.per-client", "stamp": 1, "onStoreLoss": "LocalShare", "sharers": 2,
        });
        snapshot["stores"] = json!([{"name": "operator", "backend": "operator"}]);
        ToAgent::Snapshot(snapshot.to_string().into_bytes())
    };
    let lowering = async {
        let client = Client::start(options(|_| {})).await.expect("a control port");
        let mut channel = Channel::new(TcpStream::connect(client.control()).await.expect("the control port is open"));
        let send = async |channel: &mut Channel<TcpStream>, message: ToAgent| {
            channel.send(message.frame().expect("it fits"), PATIENCE).await.expect("the port reads");
        };
        let until = async |channel: &mut Channel<TcpStream>, wanted: u8| {
            let mut before = Vec::new();
            loop {
                let tag = timeout(PATIENCE, channel.next()).await.expect("in time").expect("a frame").tag;
                if tag == wanted {
                    return before;
                }
                before.push(tag);
            }
        };
        for message in [ToAgent::Hello, fleet(1)] {
            send(&mut channel, message).await;
        }
        assert_eq!(until(&mut channel, tag::LEVELS_SENT).await, [tag::STATUS, tag::ACKNOWLEDGEMENT]);
        send(&mut channel, ToAgent::Answers(Vec::new())).await;
        until(&mut channel, tag::LEVELS_SENT).await;

        let (release, held) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || held.recv());
        send(&mut channel, fleet(2)).await;
        send(&mut channel, ToAgent::StatusRequest(StatusRequest { every_millis: 100 })).await;
        assert_eq!(until(&mut channel, tag::STATUS).await, Vec::<u8>::new());
        let app = app(&client);
        let (_, before) = tokio::join!(statuses(&app, "192.0.2.1", 1), until(&mut channel, tag::QUESTIONS));
        assert!(!before.contains(&tag::ACKNOWLEDGEMENT), "{before:?}");
        for message in [fleet(3), fleet(1)] {
            send(&mut channel, message).await;
        }
        release.send(()).expect("the thread waits");
        busy.await.expect("no panic").expect("released");
        for (answer, others) in [
            (tag::ACKNOWLEDGEMENT, tag::REJECTION),
            (tag::ACKNOWLEDGEMENT, tag::REJECTION),
            (tag::REJECTION, tag::ACKNOWLEDGEMENT),
        ] {
            let before = until(&mut channel, answer).await;
            assert!(!before.contains(&others), "{before:?}");
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    runtime.expect("a runtime").block_on(lowering);
}

/// A snapshot can have more faults than a message of the channel.
#[tokio::test]
async fn the_operator_gets_the_first_faults_of_many_and_their_number() {
    let client = Client::start(options(|_| {})).await.expect("a control port");
    let mut channel = Channel::new(TcpStream::connect(client.control()).await.expect("the control port is open"));
    let mut many = snapshot(1, 2);
    many["policies"][0]["rules"] = (0..10_000).map(|_| json!({"surprise": true})).collect();
    let mut long = snapshot(1, 2);
    long["\u{1}".repeat(100_000)] = json!(true);
    let pushes = [many, long, snapshot(1, 2)].map(|snapshot| ToAgent::Snapshot(snapshot.to_string().into_bytes()));
    for message in [ToAgent::Hello].into_iter().chain(pushes) {
        channel.send(message.frame().expect("it fits"), PATIENCE).await.expect("the port reads");
    }
    let mut next = async || {
        let frame = timeout(PATIENCE, channel.next()).await.expect("in time").expect("a frame");
        ToOperator::parse(&frame).expect("a message")
    };
    assert!(matches!(next().await, ToOperator::Status(_)));
    let ToOperator::Rejection(rejection) = next().await else { panic!("the snapshot is faulty") };
    assert_eq!(rejection.message, "10000 faults: the snapshot in force does not change");
    assert_eq!(rejection.faults.len(), 101);
    assert_eq!(rejection.faults[99].path, "policies[0].rules[99].surprise");
    assert_eq!(rejection.faults[100].message, "and 9900 more");
    let ToOperator::Rejection(rejection) = next().await else { panic!("the snapshot is faulty") };
    assert_eq!(rejection.faults.len(), 1);
    assert!(rejection.faults[0].message.starts_with("unknown field"), "{rejection:?}");
    assert!(matches!(next().await, ToOperator::Acknowledgement(_)));
}

/// Starts a client with an identity, at this address.
async fn with_identity(address: &str) -> Client {
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "token").expect("written");
    let authority = rcgen::generate_simple_self_signed(["operator.test".to_owned()]).expect("a certificate");
    let identified = options(|control| {
        control.control = address.parse().expect("an address");
        control.identity_url = Some("https://127.0.0.1:1".to_owned());
        control.identity_ca = Some(authority.cert.pem());
        control.identity_token_file = Some(token);
    });
    Client::start(identified).await.expect("a control port")
}

/// With certificates, a client in the pod can read without TLS, but it gets no channel.
#[tokio::test]
async fn a_port_with_certificates_has_no_channel_without_tls() {
    let client = with_identity("127.0.0.1:0").await;
    assert_eq!(control(&client, "GET /v1/status", "").await.0, 200);
    let mut channel = Channel::new(TcpStream::connect(client.control()).await.expect("the control port is open"));
    channel.send(ToAgent::Hello.frame().expect("a short message"), PATIENCE).await.expect("the port reads");
    let answer = timeout(PATIENCE, channel.next()).await.expect("in time");
    assert!(matches!(answer, Err(ChannelError::Frame(_))), "HTTP answers: {answer:?}");
}

/// The proxy of a mesh connects from a loopback address to the pod's address, for clients in other pods.
#[tokio::test]
async fn a_client_of_the_pods_address_needs_a_certificate_also_from_loopback() {
    let client = with_identity("0.0.0.0:0").await;
    // A UDP socket that connects sends nothing, and has this machine's address. A machine without a network has none.
    let probe = UdpSocket::bind("0.0.0.0:0").await.expect("a socket");
    if probe.connect("192.0.2.1:9").await.is_err() {
        return;
    }
    let own = probe.local_addr().expect("an address").ip();
    for (target, is_answered) in [(own, false), (Ipv4Addr::LOCALHOST.into(), true)] {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.6:0".parse().expect("an address")).expect("a loopback address");
        let exchange = async {
            let mut stream = socket.connect((target, client.control().port()).into()).await.expect("the port is open");
            stream.write_all(b"GET /v1/status HTTP/1.0\r\n\r\n").await.expect("the request is sent");
            let mut response = Vec::new();
            // A port that expects TLS can reset the connection.
            let _ = stream.read_to_end(&mut response).await;
            response
        };
        let response = timeout(PATIENCE, exchange).await.expect("in time");
        assert_eq!(response.starts_with(b"HTTP/1"), is_answered, "{target}: {response:?}");
    }
}

#[tokio::test]
async fn rules_that_a_layer_cannot_enforce_are_rejected_as_a_whole() {
    let client = Client::start(options(|_| {})).await.expect("a control port");
    assert_eq!(put(&client, &snapshot(1, 2)).await.0, 200);
    for (pointer, value, path) in [
        ("/policies/0/domain", json!("shop"), "policies[0].domain"),
        ("/policies/0/rules/0/per", json!("Message"), "policies[0].rules[0].per"),
        ("/policies/0/rules/0/cost", json!("requestBytes"), "policies[0].rules[0].cost"),
    ] {
        let mut unfit = snapshot(2, 9);
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        unfit.pointer_mut(parent).expect("an object")[name] = value;
        let (status, rejection) = put(&client, &unfit).await;
        assert_eq!((status, rejection["faults"][0]["path"].as_str()), (422, Some(path)), "{rejection}");
    }
    assert_eq!(statuses(&app(&client), "192.0.2.1", 3).await, [200, 200, 429], "the last good rules stay in force");
}

#[tokio::test]
async fn a_program_that_restarts_has_its_last_limits() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("snapshot.json");
    let given = snapshot(1, 1).to_string();
    let start = || {
        Client::start(options(|it| {
            (it.bootstrap, it.snapshot_cache) = (Some(given.clone()), Some(cache.clone()));
            it.wait_for_config = true;
        }))
    };
    let client = start().await.expect("a control port");
    client.ready().await;
    assert_eq!(statuses(&app(&client), "192.0.2.1", 2).await, [200, 429], "the bootstrap snapshot");
    assert_eq!(put(&client, &snapshot(2, 2)).await.0, 200);
    client.shutdown().await;
    let client = start().await.expect("a control port");
    assert_eq!(statuses(&app(&client), "192.0.2.1", 3).await, [200, 200, 429], "the snapshot that was pushed last");
}

/// A shutdown closes the control port and its connections, and the rules stay in force.
#[tokio::test]
async fn after_a_shutdown_the_control_port_is_closed_and_the_rules_remain() {
    let client = Client::start(options(|_| {})).await.expect("a control port");
    assert_eq!(put(&client, &snapshot(1, 1)).await.0, 200);
    let (app, address) = (app(&client), client.control());
    let mut open = Channel::new(TcpStream::connect(address).await.expect("the control port is open"));
    open.send(ToAgent::Hello.frame().expect("a short message"), PATIENCE).await.expect("the port reads");
    assert_eq!(timeout(PATIENCE, open.next()).await.expect("in time").expect("a frame").tag, tag::STATUS);

    let asked = client.clone();
    let asked = tokio::spawn(async move { asked.asked_to_leave().await });
    assert_eq!(control(&client, "POST /v1/leave", "").await.0, 204);
    timeout(PATIENCE, asked).await.expect("the program is asked to leave").expect("no panic");

    client.shutdown().await;
    let next = timeout(PATIENCE, open.next()).await;
    assert!(matches!(next, Ok(Err(_))), "a connection of the control port is still open");
    let start = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(start.elapsed() < PATIENCE, "the control port is still open");
        tokio::task::yield_now().await;
    }
    assert_eq!(statuses(&app, "192.0.2.1", 2).await, [200, 429]);
}

#[tokio::test]
async fn a_faulty_first_snapshot_keeps_the_program_waiting_for_a_good_one() {
    let client = Client::start(options(|it| it.bootstrap = Some(snapshot(1, 0).to_string()))).await.expect("it runs");
    assert!(client.must_wait(), "the program would run without its limits");
    let waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.ready().await });
    assert_eq!(put(&client, &snapshot(2, 1)).await.0, 200);
    timeout(PATIENCE, waiting).await.expect("ready").expect("no panic");
    assert!(!client.must_wait());
}

/// A cache that cannot be read may contain limits. Here the cache is a directory.
#[tokio::test]
async fn a_cache_that_cannot_be_read_keeps_the_program_waiting_for_a_snapshot() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("snapshot.json");
    std::fs::create_dir(&cache).expect("created");
    let client = Client::start(options(|it| it.snapshot_cache = Some(cache.clone()))).await.expect("it runs");
    assert!(client.must_wait(), "the program would run without its limits");
    assert_eq!(put(&client, &snapshot(1, 1)).await.0, 200);
    assert!(!client.must_wait());
    let with_bootstrap = Client::start(options(|it| {
        (it.snapshot_cache, it.bootstrap) = (Some(cache), Some(snapshot(1, 1).to_string()));
    }));
    let client = with_bootstrap.await.expect("it runs");
    assert!(!client.must_wait());
    assert_eq!(statuses(&app(&client), "192.0.2.1", 2).await, [200, 429], "the bootstrap snapshot");
}

async fn refused(options: Options) -> String {
    match Client::start(options).await {
        Ok(client) => panic!("started: {client:?}"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn wrong_options_are_refused_with_their_names_and_the_fix() {
    let first = Client::start(options(|_| {})).await.expect("a control port");
    let taken = first.control();
    let error = refused(options(|it| it.control = taken)).await;
    assert!(error.starts_with(&format!("cannot listen on --control {taken}: ")), "{error}");

    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let issue = || rcgen::generate_simple_self_signed(["weir.test".to_owned()]).expect("a certificate");
    let (own, other) = (issue(), issue());
    std::fs::write(at("tls.crt"), own.cert.pem()).expect("written");
    std::fs::write(at("tls.key"), own.signing_key.serialize_pem()).expect("written");
    std::fs::write(at("other.key"), other.signing_key.serialize_pem()).expect("written");
    std::fs::write(at("text"), "hello").expect("written");
    let tls = |cert: &str, key: &str, client_ca: &str| {
        options(|it| {
            let path = |name: &str| Some(at(name));
            (it.control_cert, it.control_key, it.control_client_ca) = (path(cert), path(key), path(client_ca));
        })
    };
    assert!(Client::start(tls("tls.crt", "tls.key", "tls.crt")).await.is_ok(), "good files are accepted");
    let shown = |name: &str| at(name).display().to_string();
    for (options, words) in [
        (tls("none", "tls.key", "tls.crt"), format!("--control-cert {}: cannot be read", shown("none"))),
        (tls("text", "tls.key", "tls.crt"), format!("--control-cert {}: no certificate in PEM", shown("text"))),
        (tls("tls.crt", "other.key", "tls.crt"), format!("--control-key {}: does not match", shown("other.key"))),
        (tls("tls.crt", "tls.key", "none"), format!("--control-client-ca {}: cannot be read", shown("none"))),
        (
            options(|it| it.control_cert = Some(at("tls.crt"))),
            "--control-cert needs --control-key: give both, or neither".to_owned(),
        ),
        (
            options(|it| it.control_client_name = Some("operator".to_owned())),
            "--control-client-name needs --control-cert".to_owned(),
        ),
        (
            options(|it| it.identity_url = Some("https://weir.test".to_owned())),
            "--identity-url needs --identity-ca".to_owned(),
        ),
        (options(|it| it.bootstrap = Some(shown("none"))), format!("--bootstrap {}: cannot be read: ", shown("none"))),
        (
            options(|it| it.snapshot_cache = Some(Path::new("/nowhere/snapshot.json").to_owned())),
            "--snapshot-cache /nowhere/snapshot.json: its folder does not exist".to_owned(),
        ),
        (
            options(|it| it.control = "0.0.0.0:0".parse().expect("an address")),
            "--control 0.0.0.0:0 is reachable from beyond loopback".to_owned(),
        ),
        (
            Options {
                jwks: JwksOptions { jwks_url: Some("https://weir.test/keys".to_owned()), ..JwksOptions::default() },
                ..options(|_| {})
            },
            "--jwks-url needs --jwks-ca".to_owned(),
        ),
    ] {
        let error = refused(options).await;
        assert!(error.contains(&words), "{error:?} does not contain {words:?}");
    }
}

/// Each of several clones learns why a task has ended.
#[tokio::test]
async fn all_who_wait_for_the_end_learn_its_reason() {
    let wait = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { timeout(PATIENCE, client.ended()).await.expect("in time") })
    };
    for (fault, expected) in [
        (Some(Ok(())), "a task panicked"),
        (Some(Err(std::io::Error::other("no descriptor"))), "no descriptor"),
        (None, "the control port is closed"),
    ] {
        let client = Client::start(options(|_| {})).await.expect("a control port");
        let waiting = [wait(&client), wait(&client)];
        match fault {
            Some(Ok(())) => client.spawn(async { panic!("this task must never end") }),
            Some(Err(error)) => client.spawn(async { Err(error) }),
            None => client.shutdown().await,
        }
        for waiting in waiting {
            assert_eq!(waiting.await.expect("no panic"), expected);
        }
    }
}
