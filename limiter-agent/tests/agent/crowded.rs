//! Tests a full proxy port: new connections evict idle ones, the longest idle first.

use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use crate::support::{Agent, App, Body, body, empty, policy, snapshot};

/// A time that is shorter than any timeout of the agent that would free a slot.
const AT_ONCE: Duration = Duration::from_secs(10);

const OPEN: &str = "weir_connections";
const EVICTED: &str = "weir_connections_evicted_total";

/// A request that the agent serves on the short path, and one that it serves on hyper's path.
const IN_PLACE: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const BY_HYPER: &str = "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Silent,
    /// A part of the HTTP/2 preface was sent.
    Begun,
    KeptAlive(&'static str),
    /// An HTTP/2 connection. The flag is true if it has served a request.
    Http2(bool),
}

/// An idle connection.
enum Idle {
    Http1(TcpStream),
    Http2(http2::SendRequest<Body>, JoinHandle<hyper::Result<()>>),
}

impl Idle {
    async fn open(agent: &Agent, kind: Kind) -> Self {
        let mut stream = agent.connect().await;
        match kind {
            Kind::Silent => Self::Http1(stream),
            Kind::Begun => {
                stream.write_all(b"PRI * HTTP/2.0\r\n").await.expect("sent");
                Self::Http1(stream)
            }
            Kind::KeptAlive(request) => {
                ask(&mut stream, request).await;
                Self::Http1(stream)
            }
            Kind::Http2(asks) => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
                let mut open = Self::Http2(sender, tokio::spawn(connection));
                if asks {
                    open.is_served().await;
                }
                open
            }
        }
    }

    /// Asserts that the connection is open and serves a request.
    async fn is_served(&mut self) {
        match self {
            Self::Http1(stream) => ask(stream, IN_PLACE).await,
            Self::Http2(sender, _) => {
                let request = Request::get("http://a/").body(empty()).expect("valid");
                let answer = timeout(AT_ONCE, sender.send_request(request))
                    .await
                    .expect("before the timeout")
                    .expect("a response");
                assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), "ok");
            }
        }
    }

    /// Asserts a clean close: the end of the stream, or a GOAWAY without an error and then the end.
    async fn closes(self) {
        match self {
            Self::Http1(mut stream) => {
                let mut rest = Vec::new();
                let read = timeout(AT_ONCE, stream.read_to_end(&mut rest)).await.expect("before the timeout");
                assert_eq!((read.expect("no reset"), rest), (0, Vec::new()));
            }
            Self::Http2(_sender, connection) => {
                timeout(AT_ONCE, connection).await.expect("before the timeout").expect("no panic").expect("a GOAWAY");
            }
        }
    }
}

async fn ask(stream: &mut TcpStream, request: &str) {
    stream.write_all(request.as_bytes()).await.expect("sent");
    assert!(answer(stream).await.starts_with("HTTP/1.1 200"));
}

/// Reads the response up to its body, which is "ok".
async fn answer(stream: &mut TcpStream) -> String {
    until(stream, "\r\n\r\nok").await
}

async fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut heard = Vec::new();
    while !heard.ends_with(end.as_bytes()) {
        let mut byte = [0];
        timeout(AT_ONCE, stream.read_exact(&mut byte)).await.expect("before the timeout").expect("a response");
        heard.push(byte[0]);
    }
    String::from_utf8(heard).expect("text")
}

async fn quick_app() -> App {
    App::serve(async |_| Response::new(body("ok"))).await
}

#[tokio::test]
async fn the_longest_idle_connection_of_any_protocol_is_evicted() {
    let app = quick_app().await;
    let kinds = [
        Kind::Silent,
        Kind::KeptAlive(IN_PLACE),
        Kind::Http2(true),
        Kind::Begun,
        Kind::KeptAlive(BY_HYPER),
        Kind::Http2(false),
    ];
    for workers in ["1", "3"] {
        let most = kinds.len().to_string();
        let agent = Agent::start(app.address, &["--max-connections", &most, "--workers", workers]);
        let mut held = std::collections::VecDeque::new();
        for kind in kinds {
            held.push_back(Idle::open(&agent, kind).await);
            agent.until_metric(OPEN, held.len() as f64).await;
        }
        for round in 0..2 * kinds.len() {
            let mut newcomer = Idle::open(&agent, kinds[(3 * round + 1) % kinds.len()]).await;
            newcomer.is_served().await;
            let oldest = held.pop_front().expect("as many as before");
            oldest.closes().await;
            held.push_back(newcomer);
            // While one leaves, the next one would have to close at once, which resets a part of a preface.
            agent.until_metric(OPEN, held.len() as f64).await;
            assert_eq!(agent.metric(EVICTED).await, Some(1.0 + round as f64), "{workers} workers");
        }
        for one in &mut held {
            one.is_served().await;
        }
    }
}

/// The evicted clients send nothing and do not close their connections.
#[tokio::test]
async fn new_connections_do_not_wait_for_evicted_ones_to_close() {
    let app = quick_app().await;
    let agent = Agent::start(app.address, &["--max-connections", "8", "--workers", "1"]);
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    let mut held = Vec::new();
    for said in ["", IN_PLACE, BY_HYPER, preface] {
        for _ in 0..40 {
            let mut stream = agent.connect().await;
            stream.write_all(said.as_bytes()).await.expect("sent");
            if said == preface {
                // The first byte of the agent's SETTINGS.
                timeout(AT_ONCE, stream.read_u8()).await.expect("before the timeout").expect("a byte");
            } else if !said.is_empty() {
                answer(&mut stream).await;
            }
            held.push(stream);
        }
        Idle::open(&agent, Kind::KeptAlive(IN_PLACE)).await.is_served().await;
    }
    // The test opened 160 connections for 8 slots, and 4 more. Some of these 4 may have closed before the next
    // connection.
    let evicted = agent.metric(EVICTED).await.expect("a number");
    assert!((150.0..=156.0).contains(&evicted), "{evicted}");
    let mut last = held.split_off(held.len() - 40);
    for stream in &mut last[..20] {
        let mut heard = vec![0];
        let goaway = async {
            while !frames(&heard).contains(&7) {
                let mut bytes = [0; 1024];
                match stream.read(&mut bytes).await.expect("no reset") {
                    0 => break,
                    count => heard.extend_from_slice(&bytes[..count]),
                }
            }
        };
        timeout(AT_ONCE, goaway).await.expect("before the timeout");
        assert!(frames(&heard).contains(&7), "a GOAWAY before the end: {:?}", frames(&heard));
    }
}

/// The types of the complete frames.
fn frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while let [a, b, c, kind, rest @ ..] = bytes {
        let end = 5 + usize::from(*a) * 65_536 + usize::from(*b) * 256 + usize::from(*c);
        let Some(behind) = rest.get(end..) else { break };
        types.push(*kind);
        bytes = behind;
    }
    types
}

/// An app that reports each request to the test, and ends its response when the test closes the channel.
async fn slow_app() -> (App, mpsc::UnboundedReceiver<mpsc::UnboundedSender<&'static str>>) {
    let (tell, begun) = mpsc::unbounded_channel();
    let app = App::serve(move |mut request: Request<Incoming>| {
        let (send, mut parts) = mpsc::unbounded_channel::<&str>();
        let slow = request.uri().path() == "/slow";
        if slow {
            tell.send(send).expect("the test waits");
        }
        async move {
            if let Some(key) = request.headers().get("sec-websocket-key").cloned() {
                let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes());
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let mut stream = TokioIo::new(upgrade.await.expect("upgraded"));
                    let (mut reads, mut writes) = tokio::io::split(&mut stream);
                    let _ = tokio::io::copy(&mut reads, &mut writes).await;
                });
                let switching = Response::builder().status(101).header("connection", "upgrade");
                let switching = switching.header("upgrade", "websocket").header("sec-websocket-accept", accept);
                return switching.body(empty()).expect("valid");
            }
            if !slow {
                // A request is in flight until its body has arrived.
                request.into_body().collect().await.expect("a body");
                return Response::new(body("ok"));
            }
            let stream = futures::stream::poll_fn(move |cx| parts.poll_recv(cx));
            let frames = futures::StreamExt::map(stream, |part| Ok(Frame::data(part.into())));
            Response::new(BodyExt::boxed(http_body_util::StreamBody::new(frames)))
        }
    })
    .await;
    (app, begun)
}

#[tokio::test]
async fn a_connection_with_a_request_in_flight_is_never_evicted() {
    let (app, mut begun) = slow_app().await;
    let agent = Agent::start(app.address, &["--max-connections", "5", "--workers", "1"]);
    let mut parts = Vec::new();
    let mut http1 = Vec::new();
    for more in ["", "te: trailers\r\n"] {
        let mut stream = agent.connect().await;
        stream.write_all(format!("GET /slow HTTP/1.1\r\nhost: a\r\n{more}\r\n").as_bytes()).await.expect("sent");
        http1.push(stream);
        parts.push(begun.recv().await.expect("asked"));
    }
    // An HTTP/1 request with an incomplete body.
    let mut sending = agent.connect().await;
    sending.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\na").await.expect("sent");
    let Idle::Http2(mut sender, _connection) = Idle::open(&agent, Kind::Http2(false)).await else { unreachable!() };
    let request = Request::get("http://a/slow").body(empty()).expect("valid");
    let (streamed, part) = tokio::join!(sender.send_request(request), async {
        let part = begun.recv().await.expect("asked");
        part.send("first").expect("open");
        part
    });
    let mut streamed = streamed.expect("a response").into_body();
    let mut websocket = agent.connect().await;
    let opening = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    websocket.write_all(opening.as_bytes()).await.expect("sent");
    assert!(until(&mut websocket, "\r\n\r\n").await.starts_with("HTTP/1.1 101"));
    agent.until_metric("weir_protocol_connections{protocol=\"websocket\"}", 1.0).await;

    // Every connection is busy, so the new one waits until one becomes idle.
    let mut newcomer = agent.connect().await;
    newcomer.write_all(IN_PLACE.as_bytes()).await.expect("sent");
    for _ in 0..50 {
        assert_eq!((agent.metric(EVICTED).await, agent.metric(OPEN).await), (Some(0.0), Some(5.0)));
    }
    for part in &parts {
        part.send("ok").expect("open");
    }
    drop(parts.remove(0));
    assert!(answer(&mut newcomer).await.starts_with("HTTP/1.1 200"));
    assert_eq!(agent.metric(EVICTED).await, Some(1.0));
    let mut rest = Vec::new();
    timeout(AT_ONCE, http1[0].read_to_end(&mut rest)).await.expect("before the timeout").expect("no reset");
    assert!(
        String::from_utf8(rest).expect("text").ends_with("2\r\nok\r\n0\r\n\r\n"),
        "the whole response arrived first"
    );

    // The new connection is now the only idle one.
    Idle::open(&agent, Kind::KeptAlive(BY_HYPER)).await.is_served().await;
    Idle::Http1(newcomer).closes().await;
    // All other connections continue.
    sending.write_all(b"bc").await.expect("sent");
    assert!(answer(&mut sending).await.starts_with("HTTP/1.1 200"));
    drop(parts);
    until(&mut http1[1], "0\r\n\r\n").await;
    part.send("last").expect("open");
    drop(part);
    assert_eq!(streamed.frame().await.expect("more").expect("data").into_data().expect("data"), "first");
    assert_eq!(streamed.frame().await.expect("more").expect("data").into_data().expect("data"), "last");
    websocket.write_all(b"still there").await.expect("sent");
    until(&mut websocket, "still there").await;
}

/// The client has its response, but would hold its slot for ten seconds.
#[tokio::test]
async fn a_new_connection_evicts_a_refused_upload_that_goes_on() {
    let app = quick_app().await;
    let agent = Agent::start(app.address, &["--max-connections", "1", "--workers", "1"]);
    let denied = json!({"name": "denied", "action": "Deny", "match": [{"paths": ["/denied"]}]});
    agent.apply(&snapshot(1, &[policy("p", &[denied])])).await;
    let (mut reads, mut writes) = agent.connect().await.into_split();
    let upload = tokio::spawn(async move {
        let head = b"POST /denied HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000000\r\n\r\n";
        writes.write_all(head).await.expect("sent");
        while writes.write_all(&[0; 64 * 1024]).await.is_ok() {}
    });
    let mut start = [0; 12];
    timeout(AT_ONCE, reads.read_exact(&mut start)).await.expect("before the timeout").expect("a response");
    assert_eq!(&start, b"HTTP/1.1 403");
    Idle::open(&agent, Kind::KeptAlive(IN_PLACE)).await.is_served().await;
    assert_eq!(agent.metric(EVICTED).await, Some(1.0));
    timeout(AT_ONCE, upload).await.expect("before the timeout").expect("no panic");
}
