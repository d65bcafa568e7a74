//! Tests the memory of bodies whose receiver does not read: uploads to the app, and responses to clients. Tests the
//! bound of all such uploads together.

use std::{future::pending, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2::Builder,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::{Agent, App, Body, PATIENCE, body, empty, read_head};

/// The number of bodies of one test, all of which fit one HTTP/2 connection.
const BODIES: u64 = 120;

/// The memory that one body takes: at most, and at least when its buffers are full.
const MOST_KIB: u64 = 350;
const LEAST_KIB: u64 = 40;

/// A request that the agent begins to serve on the short path, and one that it serves on hyper's path.
const FIELDS: [&str; 2] = ["", "te: trailers\r\n"];

fn endless() -> Body {
    const PART: usize = 1024 * 1024;
    let part = Bytes::from(vec![b'x'; PART]);
    BodyExt::boxed(StreamBody::new(stream::repeat(part).map(|part| Ok(Frame::data(part)))))
}

/// Waits until the buffers are full and the memory of the agent no longer grows. Returns the growth for each body.
async fn grown_kib(agent: &Agent, before: u64) -> u64 {
    let (mut last, mut calm) = (0, 0);
    while calm < 5 {
        sleep(Duration::from_millis(300)).await;
        let grown = agent.resident_kib().saturating_sub(before);
        calm = if grown < LEAST_KIB * BODIES || grown > last + 100 { 0 } else { calm + 1 };
        last = last.max(grown);
    }
    last / BODIES
}

/// Opens [`BODIES`] connections. Each sends `request`, and then `body` again and again. The clients read nothing.
async fn over_http1(agent: &Agent, request: &str, body: &'static [u8]) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for _ in 0..BODIES {
        let mut stream = agent.connect_with_buffer(4 * 1024).await;
        stream.write_all(request.as_bytes()).await.expect("sent");
        clients.spawn(async move {
            while !body.is_empty() {
                stream.write_all(body).await.expect("the agent keeps the connection");
            }
            pending::<()>().await;
        });
    }
    clients
}

/// Sends [`BODIES`] requests over one connection. The client reads no response.
async fn over_http2(agent: &Agent, request: fn() -> Request<Body>) -> JoinSet<()> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1024).initial_connection_window_size(64 * 1024);
    let (sender, connection) = builder.handshake(TokioIo::new(agent.connect().await)).await.expect("HTTP/2");
    let mut clients = JoinSet::new();
    clients.spawn(async { connection.await.expect("the agent keeps the connection") });
    for _ in 0..BODIES {
        let mut sender = sender.clone();
        clients.spawn(async move {
            let _unread = sender.send_request(request()).await.expect("a response");
            pending::<()>().await;
        });
    }
    clients
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_the_app_does_not_read_take_little_memory() {
    let app = App::serve(async |request| {
        let _unread = request;
        pending().await
    })
    .await;
    for fields in FIELDS {
        let agent = Agent::start(app.address, &[]);
        let before = agent.resident_kib();
        let request = format!("POST / HTTP/1.1\r\nhost: a\r\n{fields}content-length: 1000000000\r\n\r\n");
        let _clients = over_http1(&agent, &request, &[b'x'; 1024 * 1024]).await;
        let each = grown_kib(&agent, before).await;
        assert!(each < MOST_KIB, "{each} KiB with {fields:?}");
    }
    let agent = Agent::start(app.address, &[]);
    let before = agent.resident_kib();
    let _clients = over_http2(&agent, || Request::post("http://a/").body(endless()).expect("valid")).await;
    let each = grown_kib(&agent, before).await;
    assert!(each < MOST_KIB, "{each} KiB over HTTP/2");
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_the_client_does_not_read_take_little_memory() {
    let app = App::serve(async |_: Request<Incoming>| Response::new(endless())).await;
    for fields in FIELDS {
        let agent = Agent::start(app.address, &[]);
        let before = agent.resident_kib();
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n");
        let _clients = over_http1(&agent, &request, b"").await;
        let each = grown_kib(&agent, before).await;
        assert!(each < MOST_KIB, "{each} KiB with {fields:?}");
    }
    let agent = Agent::start(app.address, &[]);
    let before = agent.resident_kib();
    let _clients = over_http2(&agent, || Request::get("http://a/").body(empty()).expect("valid")).await;
    let each = grown_kib(&agent, before).await;
    assert!(each < MOST_KIB, "{each} KiB over HTTP/2");
}

/// The number of stalled uploads that the agent keeps, and the number beyond it.
const KEPT: usize = 128;
const TOO_MANY: usize = 20;

/// The length of an upload: more than the kernel and the agent have room for.
const LENGTH: usize = 6 * 1024 * 1024;

const GIVEN_UP: &str = "weir_upstream_errors_total{reason=\"unread\"}";

/// Handles a request without a body at once. Reads other requests when the test says so.
async fn read_later(request: Request<Incoming>, mut reads: watch::Receiver<bool>) -> Response<Body> {
    if request.method() == "POST" {
        reads.wait_for(|reads| *reads).await.expect("the test runs");
    }
    let length = request.into_body().collect().await.map_or(0, |body| body.to_bytes().len());
    Response::new(body(length.to_string()))
}

/// Sends an upload over its own connection, and returns the status and the body of the response. A client that gets a
/// response early does not send the rest.
async fn upload(agent: &Agent) -> impl Future<Output = String> + Send + 'static {
    let (mut reads, mut writes) = agent.connect().await.into_split();
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {LENGTH}\r\n\r\n");
    writes.write_all(head.as_bytes()).await.expect("sent");
    async move {
        let sends = async move {
            // Fails if the agent closes the connection first.
            let _ = writes.write_all(&vec![b'x'; LENGTH]).await;
            pending::<()>().await;
        };
        let response = async {
            let head = read_head(&mut reads).await.expect("a response");
            let length = head.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next()?.parse().ok());
            let mut body = vec![0; length.expect("a length")];
            reads.read_exact(&mut body).await.expect("a body");
            format!("{} {}", &head[9..12], String::from_utf8_lossy(&body))
        };
        tokio::select! {
            () = sends => unreachable!("it never ends"),
            response = response => response,
        }
    }
}

/// Waits for this number of responses, and returns how many begin with `text`.
async fn responses(uploads: &mut JoinSet<String>, number: usize, text: &str) -> usize {
    let mut found = 0;
    for _ in 0..number {
        let response = timeout(PATIENCE, uploads.join_next()).await.expect("in time").expect("a client");
        found += usize::from(response.expect("no panic").starts_with(text));
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_a_bound_an_upload_that_the_app_does_not_read_gets_503() {
    for (over_http2, to_http2) in [(false, false), (true, false), (true, true)] {
        let (reads, later) = watch::channel(false);
        let handle = move |request| read_later(request, later.clone());
        let app = if to_http2 { App::serve_http2(handle).await } else { App::serve(handle).await };
        let agent = Agent::start(app.address, &[]);
        let mut uploads = JoinSet::new();
        let mut sender = agent.http2().await;
        for _ in 0..KEPT + TOO_MANY {
            if over_http2 {
                let request = Request::post("http://a/").body(body(vec![b'x'; LENGTH])).expect("valid");
                let response = sender.send_request(request);
                uploads.spawn(async {
                    let response = response.await.expect("the connection stays open");
                    let status = response.status().as_u16();
                    let body = response.into_body().collect().await.expect("a body").to_bytes();
                    format!("{status} {}", String::from_utf8_lossy(&body))
                });
            } else {
                uploads.spawn(upload(&agent).await);
            }
        }
        assert_eq!(responses(&mut uploads, TOO_MANY, "503 weir-agent: ").await, TOO_MANY, "{over_http2}, {to_http2}");
        // Other requests of the same connection continue.
        let other = sender.send_request(Request::get("http://a/").body(empty()).expect("valid"));
        assert_eq!(timeout(PATIENCE, other).await.expect("in time").expect("a response").status(), 200);
        reads.send_replace(true);
        assert_eq!(responses(&mut uploads, KEPT, &format!("200 {LENGTH}")).await, KEPT, "{over_http2}, {to_http2}");
        assert_eq!(agent.metric(GIVEN_UP).await, Some(TOO_MANY as f64));
    }
}

/// The response has ended, but the client continues with its upload. The app has to read it, or to close the
/// connection.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_that_the_app_does_not_read_after_its_response_have_the_same_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let agent = Agent::start(listener.local_addr().expect("bound"), &[]);
    let app = tokio::spawn(async move {
        let mut unread = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            if read_head(&mut stream).await.is_some() {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.expect("sent");
                unread.push(stream);
            }
        }
    });
    let mut clients = JoinSet::new();
    for _ in 0..KEPT + TOO_MANY {
        let mut stream = agent.connect().await;
        stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000000\r\n\r\n").await.expect("sent");
        clients.spawn(async move {
            let (mut reads, mut writes) = stream.split();
            let sends = async {
                let part = vec![b'x'; 1024 * 1024];
                while writes.write_all(&part).await.is_ok() {}
            };
            let (head, ()) = tokio::join!(read_head(&mut reads), sends);
            assert!(head.expect("a response").starts_with("HTTP/1.1 200"));
        });
    }
    for _ in 0..TOO_MANY {
        let ended = timeout(PATIENCE, clients.join_next()).await.expect("in time").expect("a client");
        ended.expect("the response came first");
    }
    app.abort();
}
