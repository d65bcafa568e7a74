//! Tests slow and silent clients: what they cost, and that they do not affect other clients.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{Agent, App, Client, PATIENCE, body, daily, empty, policy, request, rule, snapshot, start, with};

async fn raw(agent: &Agent, bytes: &str) -> TcpStream {
    let mut stream = agent.connect().await;
    stream.write_all(bytes.as_bytes()).await.expect("sent");
    stream
}

async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("a clean close");
    String::from_utf8(answer).expect("text")
}

/// Responds with 1 GiB, which is generated while it is read.
async fn gibibyte(_: Request<Incoming>) -> Response<crate::support::Body> {
    const PART: usize = 1024 * 1024;
    let part = Bytes::from(vec![b'x'; PART]);
    let parts = futures::stream::iter(0..1024).map(move |_| Ok(Frame::data(part.clone())));
    Response::new(BodyExt::boxed(StreamBody::new(parts)))
}

#[tokio::test]
async fn each_pause_has_its_limit() {
    let app = App::serve(async |request: Request<Incoming>| {
        if request.uri().path() == "/never" {
            return std::future::pending().await;
        }
        Response::new(request.into_body().boxed())
    })
    .await;
    let limits =
        ["--header-timeout", "3s", "--idle-timeout", "4s", "--stall-timeout", "5s", "--response-timeout", "12s"];
    let agent = Agent::start(app.address, &limits);
    let cases = [
        // The client sends nothing, a part of a head, of a second head or of a body, a whole request, or a preface.
        ("", ""),
        ("GET / HTTP/1.1\r\nhost", ""),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "HTTP/1.1 200"),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\nGET", "HTTP/1.1 200"),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhe", "HTTP/1.1 200"),
        ("POST /never HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhe", "HTTP/1.1 408"),
        ("GET /never HTTP/1.1\r\nhost: a\r\n\r\n", "HTTP/1.1 504"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
    ];
    // The limits are so long that a busy machine does not reach a wrong one. So all cases run at the same time.
    futures::future::join_all(cases.map(async |(sent, answer)| {
        let stream = raw(&agent, sent).await;
        let heard = tokio::time::timeout(Duration::from_secs(30), rest_of_any(stream))
            .await
            .expect("closed before the timeout");
        assert!(heard.starts_with(answer.as_bytes()), "{sent:?}: {}", String::from_utf8_lossy(&heard));
    }))
    .await;
    let (_, metrics) = agent.telemetry("/metrics").await;
    assert!(metrics.contains("weir_upstream_errors_total{reason=\"response_timeout\"} 1\n"), "{metrics}");
}

/// A byte now and then is no progress.
#[tokio::test]
async fn a_head_that_trickles_in_has_the_same_limit() {
    let app = App::serve(async |_| Response::new(empty())).await;
    let agent = Agent::start(app.address, &["--header-timeout", "100ms"]);
    let mut stream = raw(&agent, "GET / HTTP/1.1\r\nx-long: ").await;
    let mut sent = 0;
    while stream.write_all(b"a").await.is_ok() {
        sent += 1;
        assert!(sent < 2_000, "the agent still reads the head");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn rest_of_any(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    // Some connections end in a reset, which is allowed for a client that violates the limits.
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_are_held_back() {
    let app = App::serve(gibibyte).await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let before = agent.resident_kib();
    let mut stuck = Vec::new();
    for _ in 0..8 {
        stuck.push(raw(&agent, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await);
    }
    // A client that reads gets its whole response, despite the other clients.
    let mut reader = raw(&agent, "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    let mut read = 0;
    let mut bytes = vec![0; 1024 * 1024];
    while let Ok(count @ 1..) = reader.read(&mut bytes).await {
        read += count;
    }
    assert!(read > 1024 * 1024 * 1024, "{read}");
    let grown = agent.resident_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "9 responses of 1 GiB took {grown} KiB");
    drop(stuck);
}

#[tokio::test]
async fn refusals_that_do_not_fit_the_socket_arrive_whole() {
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let no = "no".repeat(400 * 1024);
    let limited = with(
        rule("all", &[daily("d", "FixedWindow", 1)]),
        json!({"onLimit": {"status": 429, "headers": "IETF", "body": no}}),
    );
    agent.apply(&snapshot(1, &[policy("p", &[limited])])).await;
    assert_eq!(agent.get("/", &[]).await.status(), 200);
    let mut stream = agent.connect_with_buffer(64 * 1024).await;
    // Together, these refusals are larger than the kernel's buffers for one connection.
    const ASKED: usize = 10;
    for _ in 0..ASKED {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        // The requests arrive one by one, as long as the agent answers them.
        agent.counts(0, 0).await;
    }
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.expect("sent");
    let heard = rest(stream).await;
    let answers: Vec<_> = heard.split("HTTP/1.1 429 ").skip(1).collect();
    assert_eq!(answers.len(), ASKED + 1);
    assert!(answers.iter().all(|answer| answer.split_once("\r\n\r\n").is_some_and(|(_, body)| body == no)));
}

/// All clients share the worker's one connection to the app.
#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_do_not_block_other_clients() {
    let app = App::serve_http2(async |request: Request<Incoming>| match request.uri().path() {
        "/long" => gibibyte(request).await,
        _ => Response::new(body("ok")),
    })
    .await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let before = agent.resident_kib();
    let get = |path: &str| Request::get(format!("http://shop.example.com{path}")).body(empty()).expect("valid");
    let (mut clients, mut stuck) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        let mut sender = agent.http2().await;
        for _ in 0..2 {
            stuck.push(sender.send_request(get("/long")).await.expect("a response"));
        }
        clients.push(sender);
    }
    let others = async {
        for _ in 0..20 {
            for client in &mut clients {
                let answer = client.send_request(get("/")).await.expect("a response");
                assert_eq!(answer.into_body().collect().await.expect("a complete body").to_bytes(), "ok");
            }
        }
    };
    tokio::time::timeout(PATIENCE, others).await.expect("no client is blocked");
    let grown = agent.resident_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "16 responses of 1 GiB took {grown} KiB");
    drop(stuck);
}

/// An app of HTTP/2 whose bodies are endless, with frames of this number of bytes. Also returns the number of frames of
/// bodies that the client does not read.
async fn small_frames(length: usize) -> (App, Arc<AtomicU64>) {
    let (unread, asked) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let count = Arc::clone(&unread);
    let app = App::serve_http2(move |request: Request<Incoming>| {
        let (count, asked) = (Arc::clone(&count), Arc::clone(&asked));
        async move {
            let is_unread = match request.uri().path() {
                "/once" => return Response::new(body("once")),
                "/second" if asked.fetch_add(1, Relaxed) == 0 => return std::future::pending().await,
                "/second" => return Response::new(body("again")),
                path => path == "/unread",
            };
            let frames = futures::stream::repeat_with(move || {
                count.fetch_add(is_unread.into(), Relaxed);
                Ok(Frame::data(Bytes::from(vec![b'x'; length])))
            });
            Response::new(BodyExt::boxed(StreamBody::new(frames)))
        }
    });
    (app.await, unread)
}

/// A client that accepts this number of bytes of a body without reading them.
async fn with_window(agent: &Agent, window: u32) -> http2::SendRequest<crate::support::Body> {
    let io = TokioIo::new(agent.connect().await);
    let client = http2::Builder::new(TokioExecutor::new()).initial_stream_window_size(window).handshake(io);
    let (sender, connection) = client.await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn request_for(path: &str) -> Request<crate::support::Body> {
    Request::get(format!("http://shop.example.com{path}")).body(empty()).expect("valid")
}

/// h2 ends a connection if its unread frames take too much memory.
#[tokio::test(flavor = "multi_thread")]
async fn unread_small_frames_do_not_end_the_streams_of_other_clients() {
    const STREAMS: u64 = 20;
    let (app, unread) = small_frames(16).await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let mut reader = with_window(&agent, 16 * 1024).await;
    let mut read = reader.send_request(request_for("/read")).await.expect("a response").into_body();
    let mut client = with_window(&agent, 0).await;
    let mut stuck = Vec::new();
    for _ in 0..STREAMS {
        stuck.push(client.send_request(request_for("/unread")).await.expect("a response"));
    }
    let progress = async {
        // The app sends frames of all streams in turn. So after 20,000 more frames than are on their way to this client,
        // the agent has received the unread ones.
        let mut more = 40_000;
        while more > 0 {
            read.frame().await.expect("the body continues").expect("the connection continues");
            more -= u32::from(unread.load(Relaxed) >= STREAMS * 1_000);
        }
    };
    tokio::time::timeout(PATIENCE, progress).await.expect("no stream is blocked");
    // The reader itself would end its connection, because it reads the body no further.
    let once = agent.http2().await.send_request(request_for("/once")).await.expect("a response");
    assert_eq!(once.into_body().collect().await.expect("a complete body").to_bytes(), "once");
    drop(stuck);
}

/// The frames have one byte, so the agent ends the connection to the app.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_repeated_if_unread_frames_of_others_end_its_connection() {
    let (app, _) = small_frames(1).await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let mut waits = agent.http2().await;
    // A request for which a connection was opened is not repeated.
    assert_eq!(waits.send_request(request_for("/once")).await.expect("a response").status(), 200);
    let answer = waits.send_request(request_for("/second"));
    let asked = async {
        while app.requests() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.expect("the app is asked");
    let mut client = with_window(&agent, 0).await;
    let mut stuck = Vec::new();
    for _ in 0..10 {
        // The last request can fail, because the others end its connection.
        stuck.push(client.send_request(request_for("/unread")).await);
    }
    let answer = tokio::time::timeout(PATIENCE, answer).await.expect("in time").expect("a response");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.into_body().collect().await.expect("a complete body").to_bytes(), "again");
    drop(stuck);
}

#[tokio::test]
async fn a_client_that_never_reads_is_finally_disconnected() {
    let app = App::serve(gibibyte).await;
    let agent = Agent::start(app.address, &["--stall-timeout", "1s"]);
    let stuck = raw(&agent, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    while !agent.telemetry("/metrics").await.1.contains("weir_connections 1\n") {
        tokio::task::yield_now().await;
    }
    let gone = async {
        while !agent.telemetry("/metrics").await.1.contains("weir_connections 0\n") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("disconnected");
    drop(stuck);
}

/// An unread stream is reset, and the app's connection is released, like over HTTP/1. A slow app does not cause a
/// reset.
#[tokio::test]
async fn unread_streams_are_reset_and_release_the_app() {
    let Unread { app: _app, agent, mut sender, dropped } = Unread::start(1024).await;
    let get = |path: &str| Request::get(format!("http://shop.example.com{path}")).body(empty()).expect("valid");
    let mut quiet = sender.send_request(get("/quiet")).await.expect("a response").into_body();
    assert_eq!(quiet.frame().await.expect("a frame").expect("data").into_data().expect("data"), "a");
    let mut stuck = Vec::new();
    for _ in 0..20 {
        stuck.push(sender.send_request(get("/long")).await.expect("a response").into_body());
    }
    until_dropped(20, &dropped, &agent).await;
    for mut body in stuck {
        let broken = loop {
            match body.frame().await.expect("the body continues") {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_reset(&broken);
    }
    // This pause is longer than those of the other streams, but the app causes it, and not the client.
    assert!(tokio::time::timeout(Duration::from_millis(1), quiet.frame()).await.is_err());
    sender.send_request(get("/quiet")).await.expect("the connection continues");
}

/// The client opens the maximum number of streams, and gives none of them a flow-control window for the body of the
/// response.
#[tokio::test]
async fn zero_windows_pin_no_connections_of_the_app() {
    const STREAMS: u64 = 200;
    let Unread { app: _app, agent, mut sender, dropped } = Unread::start(0).await;
    let get = || Request::get("http://shop.example.com/long").body(empty()).expect("valid");
    let answers: Vec<_> = (0..STREAMS).map(|_| sender.send_request(get())).collect();
    let mut stuck = Vec::new();
    for answer in answers {
        stuck.push(answer.await.expect("a response").into_body());
    }
    until_dropped(STREAMS, &dropped, &agent).await;
    for mut body in stuck {
        let broken = body.frame().await.expect("the body continues").expect_err("no byte fits");
        assert_reset(&broken);
    }
    assert_eq!(sender.send_request(get()).await.expect("the connection continues").status(), 200);
}

/// The kernel can accept more data than the client reads. So this client reads for many times the stall timeout.
#[tokio::test]
async fn a_slow_steady_reader_is_not_disconnected() {
    let app = App::serve(gibibyte).await;
    let agent = Agent::start(app.address, &["--stall-timeout", "2s"]);
    for more in ["", "te: trailers\r\n"] {
        let mut stream = raw(&agent, &format!("GET / HTTP/1.1\r\nhost: a\r\n{more}\r\n")).await;
        // The client reads 200 KB per second, because this test is about the rate.
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        let mut bytes = vec![0; 10_000];
        for _ in 0..200 {
            pace.tick().await;
            stream.read_exact(&mut bytes).await.expect("more of the response");
        }
        assert_eq!(agent.metric("weir_connections").await, Some(1.0), "{more:?}");
        drop(stream);
        agent.until_metric("weir_connections", 0.0).await;
    }
}

/// Tests HTTP/2 with one stream, and with several streams that take turns. The client's windows are large, but it reads
/// the connection slowly.
#[tokio::test]
async fn streams_of_a_slow_steady_reader_are_not_reset() {
    const STREAMS: [u8; 2] = [1, 8];
    let app = App::serve(gibibyte).await;
    let agent = Agent::start(app.address, &["--stall-timeout", "2s", "--upstream-http2", "never"]);
    for streams in STREAMS {
        // The client sends SETTINGS with windows of 16 MiB, a window of 1 GiB for the connection, and a GET for each
        // stream.
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        sent.extend(b"\0\0\x06\x04\0\0\0\0\0\0\x04\x01\0\0\0\0\0\x04\x08\0\0\0\0\0\x40\0\0\0");
        for stream in 0..streams {
            sent.extend(b"\0\0\x06\x01\x05\0\0\0");
            sent.push(2 * stream + 1);
            sent.extend(b"\x82\x86\x84\x41\x01a");
        }
        let mut stream = agent.connect().await;
        stream.write_all(&sent).await.expect("sent");
        // The client reads 200 KB per second, because this test is about the rate.
        let mut pace = tokio::time::interval(Duration::from_millis(50));
        let mut heard = Vec::new();
        for _ in 0..200 {
            pace.tick().await;
            let mut bytes = vec![0; 10_000];
            stream.read_exact(&mut bytes).await.expect("more of the response");
            heard.extend(bytes);
        }
        let (mut rest, mut types) = (&heard[..], std::collections::BTreeSet::new());
        while let [a, b, c, kind, behind @ ..] = rest {
            types.insert(*kind);
            rest = behind.get(5 + u32::from_be_bytes([0, *a, *b, *c]) as usize..).unwrap_or_default();
        }
        // DATA, HEADERS, SETTINGS and WINDOW_UPDATE are allowed. RST_STREAM and GOAWAY are not.
        assert!(types.contains(&0) && types.is_subset(&[0, 1, 4, 8].into()), "{streams} streams: {types:?}");
        drop(stream);
        agent.until_metric("weir_connections", 0.0).await;
    }
}

/// A client over HTTP/2 that leaves endless bodies unread.
struct Unread {
    app: App,
    agent: Agent,
    sender: http2::SendRequest<crate::support::Body>,
    /// The number of bodies that the agent has dropped.
    dropped: Arc<AtomicU64>,
}

impl Unread {
    /// `window` is the number of bytes of a stream that the client accepts without reading.
    async fn start(window: u32) -> Self {
        let dropped = Arc::new(AtomicU64::new(0));
        let counter = dropped.clone();
        let app = App::serve(move |request: Request<Incoming>| {
            let dropped = Counted(counter.clone());
            async move { endless(&request, dropped) }
        })
        .await;
        let agent =
            Agent::start(app.address, &["--stall-timeout", "300ms", "--workers", "1", "--upstream-http2", "never"]);
        let stream = agent.connect().await;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake(TokioIo::new(stream))
            .await
            .expect("HTTP/2");
        tokio::spawn(connection);
        Self { app, agent, sender, dropped }
    }
}

/// Waits until the agent has dropped this many bodies. Meanwhile the agent must answer probes.
async fn until_dropped(count: u64, dropped: &AtomicU64, agent: &Agent) {
    let freed = async {
        while dropped.load(Relaxed) < count {
            assert_eq!(agent.telemetry("/healthz").await.0, 200);
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("the app's connections are closed");
}

fn assert_reset(broken: &hyper::Error) {
    let reset = std::error::Error::source(broken).and_then(|error| error.downcast_ref::<h2::Error>());
    assert!(reset.is_some_and(|error| error.is_reset() && error.is_remote()), "{broken:?}");
}

/// An endless body, or, for `/quiet`, a body that pauses forever.
fn endless(request: &Request<Incoming>, dropped: Counted) -> Response<crate::support::Body> {
    if request.uri().path() == "/quiet" {
        std::mem::forget(dropped);
        let first = futures::stream::once(async { Ok(Frame::data(Bytes::from_static(b"a"))) });
        return Response::new(BodyExt::boxed(StreamBody::new(first.chain(futures::stream::pending()))));
    }
    let part = Bytes::from(vec![b'x'; 1024 * 1024]);
    let parts = futures::stream::repeat_with(move || {
        let _held = &dropped;
        Ok(Frame::data(part.clone()))
    });
    Response::new(BodyExt::boxed(StreamBody::new(parts)))
}

/// Counts the bodies that are dropped.
struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A time that is shorter than any of the agent's timeouts on these ports.
const AT_ONCE: Duration = Duration::from_secs(4);

#[tokio::test]
async fn probes_and_pushes_are_served_while_a_client_holds_all_other_places() {
    let (_app, agent) = start().await;
    let body_to_come = "POST /v1/explain HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n";
    let head_to_come = "GET /healthz HTTP/1.1\r\nhost";
    let mut held = Vec::new();
    for (port, said) in [
        (agent.addresses.telemetry, ""),
        (agent.addresses.telemetry, head_to_come),
        (agent.addresses.control, ""),
        (agent.addresses.control, head_to_come),
        (agent.addresses.control, body_to_come),
    ] {
        for _ in 0..300 {
            let mut stream = TcpStream::connect(port).await.expect("connected");
            // The write can fail, because the connection may have been evicted.
            let _ = stream.write_all(said.as_bytes()).await;
            held.push(stream);
        }
        let url = format!("http://{}/healthz", agent.addresses.telemetry);
        // The clients are new, because an idle connection may have been evicted.
        let (prober, operator) = (Client::new(), Client::new());
        let probe = tokio::time::timeout(AT_ONCE, prober.get(&url, &[])).await;
        assert_eq!(probe.expect("answered at once").status(), 200, "{said:?}");
        let put = snapshot(held.len() as u64, &[]).to_string();
        let put = request("PUT", &agent.control_url("/v1/config"), &[], put);
        let put = tokio::time::timeout(AT_ONCE, operator.send(put)).await;
        assert_eq!(put.expect("taken at once").status(), 200, "{said:?}");
    }
}
