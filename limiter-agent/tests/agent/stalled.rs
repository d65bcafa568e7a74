//! Tests the memory of bodies whose receiver does not read: uploads to the app, and responses to clients.

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
use tokio::{io::AsyncWriteExt, net::TcpSocket, task::JoinSet, time::sleep};

use crate::support::{Agent, App, Body, empty};

/// The number of bodies of one test, all of which fit one HTTP/2 connection.
const BODIES: u64 = 150;

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
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4 * 1024).expect("a socket");
        let mut stream = socket.connect(agent.addresses.listen).await.expect("connected");
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
