//! Tests a pod that is being deleted, and an app that stops: clients with keep-alive connections lose no more requests
//! than without the agent.

use std::{io, net::SocketAddr, process::Output};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use crate::support::{Agent, Body, PATIENCE, binary, body, empty};

/// The values of `--in-place`, for both paths of HTTP/1.1 through the agent.
const WAYS: [&str; 2] = ["on", "off"];

/// An app that stops like most apps: it refuses new connections, closes idle ones and finishes its requests.
struct Stopping {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
    /// When this is true, the app answers `/slow`, and closes the connection of `/dropped` without a response.
    go: watch::Sender<bool>,
    /// The number of requests for these paths.
    slow: watch::Receiver<usize>,
}

impl Stopping {
    async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = watch::channel(false);
        let (go, gone) = watch::channel(false);
        let (count, slow) = watch::channel(0);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (mut stopped, gone, count) = (stopped.clone(), gone.clone(), count.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (mut gone, count) = (gone.clone(), count.clone());
                    async move {
                        let path = request.uri().path();
                        if path != "/" {
                            count.send_modify(|count| *count += 1);
                            gone.wait_for(|gone| *gone).await.expect("the test continues");
                        }
                        if path == "/dropped" {
                            return Err(io::Error::other("the process ends"));
                        }
                        Ok(Response::new(body("ok")))
                    }
                });
                tokio::spawn(async move {
                    let mut connection = std::pin::pin!(
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service)
                    );
                    tokio::select! {
                        _ = &mut connection => return,
                        _ = stopped.wait_for(|stopped| *stopped) => connection.as_mut().graceful_shutdown(),
                    }
                    let _ = connection.await;
                });
            }
        });
        Self { address, stop, accepting, go, slow }
    }

    /// Stops like an app that gets SIGTERM.
    async fn stop(&mut self) {
        self.accepting.abort();
        let _ = (&mut self.accepting).await;
        self.stop.send_replace(true);
    }

    async fn until_slow(&mut self, count: usize) {
        timeout(PATIENCE, self.slow.wait_for(|came| *came == count))
            .await
            .expect("before the timeout")
            .expect("the app runs");
    }
}

fn leave(agent: &Agent, more: &[&str]) -> std::process::Command {
    let mut command = binary();
    command.args(["leave", "--control", &agent.addresses.control.to_string()]).args(more);
    command
}

fn has_left(agent: &Agent) {
    let Output { status, stderr, .. } = leave(agent, &[]).output().expect("the program runs");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}

/// One HTTP/1.1 connection.
struct Line(TcpStream);

impl Line {
    async fn open(agent: &Agent) -> Self {
        Self(agent.connect().await)
    }

    async fn send(&mut self, method: &str) {
        self.send_to(method, "/").await;
    }

    async fn send_to(&mut self, method: &str, path: &str) {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
        self.0.write_all(head.as_bytes()).await.expect("sent");
    }

    /// Returns the status, and whether the connection closes after the response, or `None` if the connection closes
    /// without one.
    async fn answer(&mut self) -> Option<(u16, bool)> {
        let mut text = String::new();
        let read = async {
            while !text.contains("\r\n\r\n") {
                let mut bytes = [0; 1024];
                let count = self.0.read(&mut bytes).await.expect("not reset");
                if count == 0 {
                    return None;
                }
                text.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
            }
            let status = text.split(' ').nth(1).expect("a status").parse().expect("a number");
            Some((status, text.to_lowercase().contains("connection: close")))
        };
        timeout(PATIENCE, read).await.expect("before the timeout")
    }

    async fn ask(&mut self, method: &str) -> Option<(u16, bool)> {
        self.send(method).await;
        self.answer().await
    }

    /// Reads to the end. Returns false if the connection is reset.
    async fn ends(mut self) -> bool {
        timeout(PATIENCE, self.0.read_to_end(&mut Vec::new())).await.expect("before the timeout").is_ok()
    }
}

#[tokio::test]
async fn a_leaving_pod_serves_until_its_app_stops_and_closes_connections() {
    for way in WAYS {
        let mut app = Stopping::start().await;
        let mut agent = Agent::start(app.address, &["--in-place", way]);
        let (mut busy, mut idle, mut never) =
            (Line::open(&agent).await, Line::open(&agent).await, Line::open(&agent).await);
        assert_eq!(busy.ask("GET").await, Some((200, false)));
        assert_eq!(idle.ask("GET").await, Some((200, false)));
        has_left(&agent);
        assert_eq!(busy.ask("GET").await, Some((200, true)), "in place: {way}");
        assert!(busy.ends().await);
        // Other clients do not know yet that the pod is being deleted.
        let mut late = Line::open(&agent).await;
        assert_eq!(late.ask("POST").await, Some((200, true)), "in place: {way}");
        assert_eq!(never.ask("GET").await, Some((200, true)), "in place: {way}");
        assert_eq!(agent.telemetry("/readyz").await.0, 200, "the pod still serves");

        let mut slow = http1::handshake(TokioIo::new(agent.connect().await)).await.expect("HTTP");
        tokio::spawn(slow.1);
        let request = Request::get("/slow").header("host", "a").body(empty()).expect("valid");
        let answer = tokio::spawn(slow.0.send_request(request));
        app.until_slow(1).await;
        app.stop().await;
        assert!(idle.ends().await, "in place: {way}");
        let refused = async {
            while TcpStream::connect(agent.addresses.listen).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, refused).await.expect("the proxy port closes, like the app's port");
        assert_eq!(agent.telemetry("/readyz").await.0, 503);
        app.go.send_replace(true);
        let answer =
            timeout(PATIENCE, answer).await.expect("before the timeout").expect("no panic").expect("a response");
        assert_eq!(answer.collect().await.expect("whole").to_bytes(), "ok");
        agent.terminate();
        assert_eq!(tokio::task::spawn_blocking(move || agent.wait().code()).await.expect("the process ended"), Some(0));
    }
}

async fn http2(agent: &Agent) -> (http2::SendRequest<Body>, JoinHandle<hyper::Result<()>>) {
    let stream = agent.connect().await;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    (sender, tokio::spawn(connection))
}

fn request(method: Method, path: &str) -> Request<Body> {
    Request::builder().method(method).uri(format!("http://a{path}")).body(empty()).expect("valid")
}

#[tokio::test]
async fn http2_clients_get_a_goaway_at_once_and_lose_no_stream() {
    let mut app = Stopping::start().await;
    let agent = Agent::start(app.address, &[]);
    let (mut sender, connection) = http2(&agent).await;
    let slow = tokio::spawn(sender.send_request(request(Method::POST, "/slow")));
    app.until_slow(1).await;
    has_left(&agent);
    let gone = async { while sender.send_request(request(Method::GET, "/")).await.is_ok() {} };
    timeout(PATIENCE, gone).await.expect("GOAWAY arrives while a stream is open");

    // A connection that opens now can finish its requests.
    let (mut late, _connection) = http2(&agent).await;
    assert_eq!(late.send_request(request(Method::POST, "/")).await.expect("a response").status(), 200);
    app.go.send_replace(true);
    assert_eq!(slow.await.expect("no panic").expect("a response").status(), 200);
    timeout(PATIENCE, connection).await.expect("before the timeout").expect("no panic").expect("a clean close");
}

/// `weir-agent leave` is not called, because the hook ran too late or the app crashed.
#[tokio::test]
async fn clients_survive_an_app_that_stops_without_notice() {
    for way in WAYS {
        let mut app = Stopping::start().await;
        let agent = Agent::start(app.address, &["--in-place", way, "--workers", "1"]);
        let (mut get, mut idle) = (Line::open(&agent).await, Line::open(&agent).await);
        for line in [&mut get, &mut idle] {
            assert_eq!(line.ask("POST").await, Some((200, false)));
        }
        let (mut sender, connection) = http2(&agent).await;
        assert_eq!(sender.send_request(request(Method::POST, "/")).await.expect("a response").status(), 200);
        app.stop().await;
        // The agent closes the connection, as the app would. Clients retry on a new connection.
        assert_eq!(get.ask("GET").await, None, "in place: {way}");
        assert!(idle.ends().await, "in place: {way}");
        timeout(PATIENCE, connection).await.expect("GOAWAY, and closed").expect("no panic").expect("a clean close");

        // A retry on a new connection is useless, so the client gets the reason.
        for method in ["GET", "POST"] {
            assert_eq!(Line::open(&agent).await.ask(method).await, Some((502, true)), "in place: {way}");
        }
        let (mut sender, connection) = http2(&agent).await;
        assert_eq!(sender.send_request(request(Method::GET, "/")).await.expect("a response").status(), 502);
        timeout(PATIENCE, connection).await.expect("GOAWAY, and closed").expect("no panic").expect("a clean close");

        let mut back = Stopping::start_at(app.address).await;
        let stays = async {
            loop {
                let mut line = Line::open(&agent).await;
                if line.ask("POST").await == Some((200, false)) && line.ask("POST").await == Some((200, false)) {
                    return line;
                }
            }
        };
        let mut line = timeout(PATIENCE, stays).await.expect("connections stay open again");
        // A connection that was opened after the first stop reacts to the second stop, too.
        back.stop().await;
        // The app may still answer a request on a connection that it is about to close.
        let until_refused =
            async { while Line::open(&agent).await.ask("GET").await.is_some_and(|(status, _)| status == 200) {} };
        timeout(PATIENCE, until_refused).await.expect("the app refuses connections");
        assert!(line.answer().await.is_none(), "in place: {way}");
    }
}

/// The connection is busy while the app is down, and idle at the app's next stop.
#[tokio::test]
async fn a_connection_busy_during_one_outage_is_closed_at_the_next() {
    for way in WAYS {
        let mut app = Stopping::start().await;
        let agent = Agent::start(app.address, &["--in-place", way, "--workers", "1"]);
        let mut busy = Line::open(&agent).await;
        busy.0.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        app.until_slow(1).await;
        let mut seen = Line::open(&agent).await;
        assert_eq!(seen.ask("GET").await, Some((200, false)));
        app.stop().await;
        let _ = Line::open(&agent).await.ask("GET").await;
        assert!(seen.ends().await, "in place: {way}");
        let mut back = Stopping::start_at(app.address).await;
        let returned = async { while Line::open(&agent).await.ask("GET").await != Some((200, false)) {} };
        timeout(PATIENCE, returned).await.expect("the app accepts connections again");
        app.go.send_replace(true);
        // hyper's path has announced that it will close the connection. On the short path, the connection stays open.
        let answer = busy.answer().await.expect("a response");
        assert_eq!(answer, (200, way == "off"), "in place: {way}");
        back.stop().await;
        let _ = Line::open(&agent).await.ask("GET").await;
        assert!(busy.ends().await, "in place: {way}");
    }
}

/// Tests the hook of an agent that gets SIGTERM together with its app.
#[tokio::test]
async fn a_hook_that_waits_ends_when_the_app_has_stopped() {
    let mut app = Stopping::start().await;
    let agent = Agent::start(app.address, &[]);
    let mut hook = leave(&agent, &["--wait", "1h"]).spawn().expect("the program runs");
    agent.logged("leaving: each response is the last on its connection").await;
    assert_eq!(Line::open(&agent).await.ask("GET").await, Some((200, true)));
    assert!(hook.try_wait().expect("the program runs").is_none(), "the app is up");
    app.stop().await;
    let status = tokio::task::spawn_blocking(move || hook.wait()).await.expect("no panic").expect("the process ended");
    assert!(status.success());

    let Output { status, stderr, .. } =
        binary().args(["leave", "--control", "127.0.0.1:9"]).output().expect("the program runs");
    assert_eq!(status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stderr).contains("--control 127.0.0.1:9: "), "{stderr:?}");
    let wrong = binary().args(["leave", "--wait", "soon"]).output().expect("the program runs");
    assert_eq!(wrong.status.code(), Some(2));
}

/// The app crashes, or ends immediately when it gets the stop signal.
#[tokio::test]
async fn a_request_that_a_stopped_app_dropped_ends_as_it_would_without_the_agent() {
    for way in WAYS {
        let mut app = Stopping::start().await;
        let agent = Agent::start(app.address, &["--in-place", way]);
        let (mut get, mut post, mut new) =
            (Line::open(&agent).await, Line::open(&agent).await, Line::open(&agent).await);
        for connection in [&mut get, &mut post] {
            assert_eq!(connection.ask("GET").await, Some((200, false)), "{way}");
        }
        let mut count = 0;
        for (connection, method) in [(&mut get, "GET"), (&mut post, "POST"), (&mut new, "GET")] {
            connection.send_to(method, "/dropped").await;
            count += 1;
            app.until_slow(count).await;
        }
        // The app's port closes first. A connection that is dropped before that does not show that the app has stopped.
        app.accepting.abort();
        let _ = (&mut app.accepting).await;
        app.go.send_replace(true);
        assert_eq!(get.answer().await, None, "{way}: most clients retry by themselves");
        assert_eq!(post.answer().await, Some((502, true)), "{way}: no client is allowed to retry it");
        assert_eq!(new.answer().await, Some((502, true)), "{way}: on a new connection the agent responds");
    }
}
