//! Tests what a layer sees in axum programs: ambiguous paths, nested routers, and upgraded connections.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::Request,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::upgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tower::ServiceExt;
use weir_client::{Client, MonotonicClock, Options, Tunnel};

/// The longest wait for any condition. After it, the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client with one rule, which matches these paths.
async fn client(paths: &[&str], limit: Value, change: impl FnOnce(&mut Options)) -> Client {
    let mut rule = json!({"name": "r", "action": "Limit", "match": [{"paths": paths}]});
    rule.as_object_mut().expect("an object").extend(limit.as_object().expect("an object").clone());
    let policy =
        json!({"uid": "u", "namespace": "n", "name": "p", "revision": "r", "mode": "Enforce", "rules": [rule]});
    let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": [policy]});
    let mut options = Options::default();
    options.control.control = "127.0.0.1:0".parse().expect("an address");
    options.control.bootstrap = Some(snapshot.to_string());
    change(&mut options);
    let client = Client::start(options).await.expect("a control port");
    assert!(!client.must_wait(), "the snapshot is in force");
    client
}

fn daily(requests: u64) -> Value {
    let limit =
        json!({"name": "daily", "strategy": "SlidingWindowLog", "requests": requests, "periodMillis": 86_400_000});
    json!({"limits": [limit]})
}

async fn status(app: &Router, path: &str) -> u16 {
    let request = Request::get(path).body(Body::empty()).expect("a request");
    app.clone().oneshot(request).await.expect("a response").status().as_u16()
}

/// Rules resolve `..`, but axum does not. So a client could avoid the rules for a path, or use up the limit of another
/// path.
#[tokio::test]
async fn a_path_that_rules_and_the_router_read_in_different_ways_is_refused() {
    let client = client(&["/search/**"], daily(1), |_| {}).await;
    let app = Router::new().route("/search/{*rest}", get(async || "found")).layer(client.layer());
    for path in [
        "/search/../x", "/search/a/../../x", "/search/%2e%2e/x", "/search/%2E./x", "/search/..", "/search/..;/x",
        "/search/..%2fx", "/search/a%2Fb", "/search/a%5Cb", "/search/./x",
    ] {
        assert_eq!(status(&app, path).await, 400, "{path}");
    }
    for (path, expected) in [("/search/x", 200), ("/search/y", 429), ("/search/%61", 429), ("/search//z", 429)] {
        assert_eq!(status(&app, path).await, expected, "{path}");
    }
    assert_eq!(client.rules().load().policies()[0].rules[0].statistics().allowed, 1, "refused paths are not charged");
}

/// axum removes the prefix of a nested router from the path.
#[tokio::test]
async fn rules_see_the_whole_path_in_a_nested_router() {
    let client = client(&["/api/**"], daily(1), |_| {}).await;
    let inner = Router::new().route("/{name}", get(async || "thank you")).layer(client.layer());
    let app = Router::new().nest("/api", inner);
    for (path, expected) in [("/api/..", 400), ("/api/checkout", 200), ("/api/checkout", 429)] {
        assert_eq!(status(&app, path).await, expected, "{path}");
    }
}

/// A test with tokio's clock can pause time: a request waits for its turn in no real time.
#[tokio::test(start_paused = true)]
async fn limits_use_the_clock_of_the_options() {
    let limit = json!({"name": "l", "strategy": "GCRA", "requests": 1, "periodMillis": 3_600_000});
    let client =
        client(&["/"], json!({"limits": [limit]}), |options| options.clock = Some(MonotonicClock::of_tokio())).await;
    let app = Router::new().route("/", get(async || "hello")).layer(client.layer());
    assert_eq!([status(&app, "/").await, status(&app, "/").await], [200, 429]);
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert_eq!([status(&app, "/").await, status(&app, "/").await], [200, 429]);
}

/// Sends the bytes of the client back, as a WebSocket app does with messages, until the client closes its direction.
async fn repeat(mut request: Request) -> Response {
    let tunnel = Tunnel::default();
    let (held, upgraded) = (tunnel.clone(), upgrade::on(&mut request));
    tokio::spawn(async move {
        let _held = held;
        if let Ok(upgraded) = upgraded.await {
            let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
            let _ = copy(&mut read, &mut write).await;
        }
    });
    let fields = [(header::CONNECTION, "upgrade"), (header::UPGRADE, "repeat")];
    (StatusCode::SWITCHING_PROTOCOLS, fields, Extension(tunnel)).into_response()
}

/// Sends a request for an upgrade. Returns the connection and the status.
async fn upgrade(server: SocketAddr) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server).await.expect("the server listens");
    stream
        .write_all(b"GET /repeat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: repeat\r\n\r\n")
        .await
        .expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(PATIENCE, stream.read_u8()).await.expect("in time").expect("a response"));
    }
    let head = String::from_utf8(head).expect("text");
    (stream, head.split(' ').nth(1).expect("a status").to_owned())
}

#[tokio::test]
async fn an_upgraded_connection_is_in_flight_until_it_is_closed() {
    let client = client(&["/repeat"], json!({"concurrency": {"name": "open", "limit": 1}}), |_| {}).await;
    let app = Router::new().route("/repeat", get(repeat)).layer(client.layer());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let server = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });

    let (mut open, first) = upgrade(server).await;
    assert_eq!(first, "101");
    open.write_all(b"hello").await.expect("sent");
    let mut echo = Bytes::from_static(b".....").to_vec();
    timeout(PATIENCE, open.read_exact(&mut echo)).await.expect("in time").expect("the connection is open");
    assert_eq!((echo.as_slice(), upgrade(server).await.1.as_str()), (b"hello".as_slice(), "429"));

    drop(open);
    let passes = async { while upgrade(server).await.1 != "101" {} };
    timeout(PATIENCE, passes).await.expect("the permit returns when the connection is closed");
}
