//! Tests the bytes of requests' bodies as a cost, in an agent process with real connections. The app counts the bytes
//! that it receives, and the limit must be charged exactly these bytes, and at least 1 for each request.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tokio_tungstenite::client_async;

use crate::{
    hostile::{Answer, frames},
    support::{Agent, App, PATIENCE, body, daily, echo, json_of, policy, rule, snapshot, with},
};

/// A burst that no test uses up. A day refills ten units.
const PLENTY: u64 = 10_000_000;

fn counted(limit: Value, more: Value) -> Value {
    policy("p", &[with(rule("all", &[limit]), with(json!({"cost": "requestBytes"}), more))])
}

fn plenty() -> Value {
    bytes_per_day(10, PLENTY, 0)
}

fn bytes_per_day(requests: u64, burst: u64, debt: u64) -> Value {
    json!({
        "name": "bytes", "strategy": "TokenBucketWithDebt", "requests": requests, "periodMillis": 86_400_000,
        "burst": burst, "debt": debt,
    })
}

/// An app that counts the bytes of bodies, and the requests that have ended.
struct Counter {
    app: App,
    received: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
}

/// Counts a request as ended, even if its handler is dropped.
struct Ends(Arc<AtomicU64>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Counter {
    async fn start() -> Self {
        let (received, ended) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let counts = (Arc::clone(&received), Arc::clone(&ended));
        let app = App::serve(move |mut request: Request<Incoming>| {
            let (received, ended) = counts.clone();
            async move {
                let _ends = Ends(ended);
                let most = match request.uri().path() {
                    "/refuse" => return Response::builder().status(413).body(body("too large")).expect("valid"),
                    "/part" => 400,
                    "/ws" => return echo(&mut request),
                    _ => usize::MAX,
                };
                let mut read = 0;
                while read < most
                    && let Some(Ok(frame)) = request.body_mut().frame().await
                {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    read += length;
                    received.fetch_add(length as u64, SeqCst);
                }
                Response::new(body("ok"))
            }
        });
        Self { app: app.await, received, ended }
    }

    fn received(&self) -> u64 {
        self.received.load(SeqCst)
    }

    async fn until_ended(&self, count: u64) {
        let ended = async {
            while self.ended.load(SeqCst) < count {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, ended).await.expect("the app's handler ends");
    }
}

/// The bytes that the app has received and the units that the limit has charged, as they must be.
struct Account<'a> {
    agent: &'a Agent,
    counter: &'a Counter,
    received: u64,
    charged: u64,
}

impl Account<'_> {
    /// Checks both numbers after one more request, of which the app received `received` bytes.
    async fn check(&mut self, name: &str, received: u64) {
        self.received += received;
        self.charged += received.max(1);
        let reply = json_of(&self.agent.control("POST", "/v1/explain", r#"{"target": "/"}"#).await);
        let charged = PLENTY - reply["rules"][0]["limit"]["remaining"].as_u64().expect("a number");
        assert_eq!((self.counter.received(), charged), (self.received, self.charged), "{name}");
    }
}

/// A client of HTTP/1.1 that writes its bytes itself.
struct Raw(TcpStream, Vec<u8>);

impl Raw {
    async fn connect(agent: &Agent) -> Self {
        Self(agent.connect().await, Vec::new())
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("sent");
    }

    /// Reads until the end of a head, and returns its status.
    async fn status(&mut self) -> u16 {
        loop {
            if let Some(end) = self.1.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head = String::from_utf8(self.1.drain(..end + 4).collect()).expect("text");
                return head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
            }
            assert!(self.0.read_buf(&mut self.1).await.expect("bytes") > 0, "no response");
        }
    }
}

fn head(path: &str, fields: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n").into_bytes()
}

fn chunked(pieces: &[usize]) -> Vec<u8> {
    let chunk = |length: &usize| [format!("{length:x}\r\n").as_bytes(), &vec![b'x'; *length], b"\r\n"].concat();
    [pieces.iter().flat_map(chunk).collect(), b"0\r\n\r\n".to_vec()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_charge_is_what_the_app_received() {
    for args in [&[][..], &["--in-place", "off"]] {
        charges_what_the_app_received(args).await;
    }
}

async fn charges_what_the_app_received(args: &[&str]) {
    let counter = Counter::start().await;
    let agent = Agent::start(counter.app.address, args);
    agent.apply(&snapshot(1, &[counted(plenty(), json!({}))])).await;
    let mut account = Account { agent: &agent, counter: &counter, received: 0, charged: 0 };

    let lengths = [0, 1, 5, 15_000, 20_000, 300_000];
    let with_length = lengths.map(|length| {
        let head = head("/", &format!("content-length: {length}\r\n"));
        (format!("a body of {length} bytes"), [head, vec![b'x'; length]].concat(), length)
    });
    let with_chunks = [&[][..], &[1], &[7, 0x1000, 3], &[100_000, 50_000]].map(|pieces: &[usize]| {
        let pieces: Vec<usize> = pieces.to_vec();
        let bytes = [head("/", "transfer-encoding: chunked\r\n"), chunked(&pieces)].concat();
        (format!("chunks {pieces:?}"), bytes, pieces.iter().sum())
    });
    let without = (String::from("no body"), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(), 0);
    for (name, bytes, length) in with_length.into_iter().chain(with_chunks).chain([without]) {
        let mut client = Raw::connect(&agent).await;
        client.send(&bytes).await;
        assert_eq!(client.status().await, 200, "{name}");
        account.check(&name, length as u64).await;
    }

    let mut sender = agent.http2().await;
    for length in [0, 9, 60_000] {
        let request = Request::post(agent.url("/")).body(body(vec![b'x'; length])).expect("valid");
        let response = sender.send_request(request).await.expect("a response");
        assert_eq!(response.status(), 200);
        account.check("HTTP/2", length as u64).await;
    }

    let expecting = |path: &str| head(path, "content-length: 300\r\nexpect: 100-continue\r\n");
    let mut client = Raw::connect(&agent).await;
    client.send(&expecting("/")).await;
    assert_eq!(client.status().await, 100);
    account.check("a body that is expected but not sent", 0).await;
    client.send(&[b'x'; 300]).await;
    assert_eq!(client.status().await, 200);
    // The first byte was charged on arrival.
    account.charged -= 1;
    account.check("a body after 100", 300).await;
    let mut client = Raw::connect(&agent).await;
    client.send(&expecting("/refuse")).await;
    assert_eq!(client.status().await, 413);
    account.check("a body that the app does not want", 0).await;

    let part = |path: &str| [head(path, "content-length: 1000\r\n"), vec![b'x'; 400]].concat();
    let mut client = Raw::connect(&agent).await;
    client.send(&part("/part")).await;
    assert_eq!(client.status().await, 200);
    account.check("an app that answers before the body ends", 400).await;
    drop(client);

    let ended = counter.ended.load(SeqCst);
    let mut client = Raw::connect(&agent).await;
    client.send(&part("/")).await;
    let arrived = async {
        while counter.received() < account.received + 400 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, arrived).await.expect("the first part arrives");
    drop(client);
    counter.until_ended(ended + 1).await;
    account.check("a body that the client cuts off", 400).await;

    let stream = agent.connect().await;
    let (mut socket, _) = client_async(format!("ws://{}/ws", agent.addresses.listen), stream).await.expect("upgraded");
    for _ in 0..3 {
        socket.send("a message".into()).await.expect("sent");
        assert_eq!(socket.next().await.expect("an echo").expect("no error").to_text().expect("text"), "a message");
    }
    account.check("a WebSocket connection has no body", 0).await;
}

/// An upload passes if the limit is not in debt, and the client is refused until the debt is paid.
#[tokio::test]
async fn a_client_in_debt_is_refused() {
    for args in [&[][..], &["--in-place", "off"]] {
        let counter = Counter::start().await;
        let agent = Agent::start(counter.app.address, args);
        let keyed = json!({"key": [{"header": "x-key"}]});
        agent.apply(&snapshot(1, &[counted(bytes_per_day(10, 1000, 5000), keyed)])).await;
        let send = async |key: &str, length: usize| {
            let request = crate::support::request("POST", &agent.url("/"), &[("x-key", key)], vec![b'x'; length]);
            agent.client.send(request).await.status().as_u16()
        };
        assert_eq!(send("ann", 5990).await, 200);
        let mut statuses = Vec::new();
        for _ in 0..12 {
            statuses.push(send("ann", 1).await);
        }
        assert_eq!(statuses, [[200; 10].as_slice(), &[429; 2]].concat(), "{args:?}");
        assert_eq!(send("ann", 100_000).await, 429);
        assert_eq!(send("bob", 5000).await, 200, "another client");
        assert_eq!(counter.received(), 5990 + 10 + 5000);
        assert_eq!(agent.counts(0, 0).await, [12, 3, 0]);
    }
}

/// Bodies pass no faster than the rate, and a deadline ends a body that takes too long.
#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_shaped() {
    const LENGTH: usize = 1_000_000;
    let counter = Counter::start().await;
    let agent = Agent::start(counter.app.address, &[]);
    // The limit is 2 MB per second with a burst of 200 kB and a debt of 100 kB, so 1 MB takes 350 ms.
    let limit = json!({
        "name": "bytes", "strategy": "TokenBucketWithDebt", "requests": 2_000_000, "periodMillis": 1000,
        "burst": 200_000, "debt": 100_000,
    });
    agent.apply(&snapshot(1, &[counted(limit, json!({}))])).await;
    let uptime =
        async || json_of(&agent.control("GET", "/v1/status", "").await)["uptimeMillis"].as_u64().expect("milliseconds");
    let before = uptime().await;
    let upload = |length: usize| crate::support::request("POST", &agent.url("/"), &[], vec![b'x'; length]);
    assert_eq!(agent.client.send(upload(LENGTH)).await.status(), 200);
    let took = uptime().await - before;
    assert!(took >= 349, "{took} ms");
    assert_eq!((counter.received(), agent.counts(0, 0).await), (LENGTH as u64, [1, 0, 0]));

    let narrow = with(counted(bytes_per_day(10, 1000, 0), json!({})), json!({"deadlineMillis": 200}));
    // Another policy has its own counts.
    agent.apply(&snapshot(2, &[with(narrow, json!({"uid": "narrow", "name": "narrow"}))])).await;
    // The agent discards the rest of a body of this length, so the client receives the response.
    assert_eq!(timeout(PATIENCE, agent.client.send(upload(100_000))).await.expect("in time").status(), 504);
}

/// A policy that stops the body of each upload to `/slow` after a few bytes. Each `x-key` has its own limit.
fn stopping() -> Value {
    let more = json!({"match": [{"paths": ["/slow"]}], "key": [{"header": "x-key"}]});
    counted(bytes_per_day(10, 10, 0), more)
}

/// A proxy sends the requests of many clients over one connection.
#[tokio::test(flavor = "multi_thread")]
async fn throttled_uploads_leave_room_for_the_other_uploads_of_their_connection() {
    const UPLOADS: usize = 199;
    let counter = Counter::start().await;
    let agent = Agent::start(counter.app.address, &["--workers", "1"]);
    agent.apply(&snapshot(1, &[stopping()])).await;
    let mut sender = agent.http2().await;
    let mut post = |path: &str, key: usize, length: usize| {
        let request = Request::post(agent.url(path)).header("x-key", key.to_string());
        sender.send_request(request.body(body(vec![b'x'; length])).expect("valid"))
    };
    // The client learns the windows of the agent.
    assert_eq!(post("/", 0, 1).await.expect("a response").status(), 200);
    let slow: Vec<_> = (0..UPLOADS).map(|key| post("/slow", key, 256 * 1024)).collect();
    let other = timeout(PATIENCE, post("/", 0, 10)).await.expect("in time");
    assert_eq!(other.expect("a response").status(), 200);
    drop(slow);
}

/// The frames of a gRPC stream can be as small.
#[tokio::test]
async fn throttled_uploads_of_small_frames_do_not_end_their_connection() {
    const UPLOADS: usize = 4;
    const FRAME: [u8; 20] = [b'x'; 20];
    // As many frames as the window of a stream has room for.
    const FRAMES: usize = 64 * 1024 / FRAME.len();
    let counter = Counter::start().await;
    let agent = Agent::start(counter.app.address, &[]);
    agent.apply(&snapshot(1, &[stopping()])).await;
    let head = |stream: u32, path: &str| {
        let key = stream.to_string();
        let fields =
            [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path), ("x-key", key.as_str())];
        frames::headers(stream, &frames::block(fields), false)
    };
    let mut client = agent.connect().await;
    client.write_all(&frames::greeting()).await.expect("sent");
    // The agent enlarges the window of the connection.
    let mut frame = [0; 9];
    while frame[3] != frames::kind::WINDOW_UPDATE {
        client.read_exact(&mut frame).await.expect("a frame");
        let mut payload = vec![0; usize::from(u16::from_be_bytes([frame[1], frame[2]]))];
        client.read_exact(&mut payload).await.expect("a frame");
    }
    client.write_all(&head(1, "/")).await.expect("sent");
    for stream in (3..).step_by(2).take(UPLOADS) {
        client.write_all(&head(stream, "/slow")).await.expect("sent");
        client.write_all(&frames::data(stream, &FRAME, false).repeat(FRAMES)).await.expect("sent");
    }
    assert_eq!(frames::ask(client, &frames::data(1, b"x", true)).await, Answer::Status(200));
}

/// Many clients and proxies send the whole body before they read. A reset would discard the response.
#[tokio::test]
async fn a_client_that_first_sends_its_whole_body_gets_the_whole_refusal() {
    const LENGTH: usize = 5_000_000;
    let app = App::start().await;
    for in_place in ["on", "off"] {
        let agent = Agent::start(app.address, &["--in-place", in_place]);
        agent.apply(&snapshot(1, &[policy("p", &[rule("all", &[daily("d", "FixedWindow", 1)])])])).await;
        assert_eq!(agent.get("/", &[]).await.status(), 200);
        let mut client = agent.connect().await;
        client.write_all(&head("/", &format!("content-length: {LENGTH}\r\n"))).await.expect("sent");
        let sent = timeout(PATIENCE, client.write_all(&vec![0; LENGTH])).await.expect("the agent reads");
        sent.unwrap_or_else(|error| panic!("--in-place {in_place}: {error}"));
        let mut answer = String::new();
        let read = timeout(PATIENCE, client.read_to_string(&mut answer)).await.expect("an end");
        read.unwrap_or_else(|error| panic!("--in-place {in_place}: {error}"));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole head");
        assert!(head.starts_with("HTTP/1.1 429 "), "--in-place {in_place}: {head}");
        let length = format!("content-length: {}", body.len());
        assert!(head.lines().any(|line| line == length), "--in-place {in_place}: {answer}");
    }
}

/// An app that refuses each upload after its first bytes, and closes the connection with unread bytes.
async fn refusing() -> SocketAddr {
    let socket = TcpSocket::new_v4().expect("a socket");
    // The rest of the upload does not fit.
    socket.set_recv_buffer_size(64 * 1024).expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let listener = socket.listen(100).expect("a listener");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                stream.read_exact(&mut vec![0; 200_000]).await?;
                stream.peek(&mut [0]).await?;
                let answer = b"HTTP/1.1 413 Too Large\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlarge";
                stream.write_all(answer).await
            });
        }
    });
    address
}

/// The app's connection is reset because of the unread bytes. Its answer arrived before.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_end_of_an_upload_arrives() {
    const LENGTH: usize = 3_000_000;
    let agent = Agent::start(refusing().await, &["--upstream-http2", "never"]);
    let with_length =
        [head("/", &format!("connection: close\r\ncontent-length: {LENGTH}\r\n")), vec![b'x'; LENGTH]].concat();
    let with_chunks =
        [head("/", "connection: close\r\ntransfer-encoding: chunked\r\n"), chunked(&[50_000; LENGTH / 50_000])]
            .concat();
    for bytes in [with_length, with_chunks] {
        for _ in 0..20 {
            let (mut answers, mut upload) = agent.connect().await.into_split();
            let mut answer = String::new();
            let (_cut_off, read) = tokio::join!(upload.write_all(&bytes), answers.read_to_string(&mut answer));
            read.expect("an end");
            assert!(answer.starts_with("HTTP/1.1 413 ") && answer.ends_with("\r\n\r\nlarge"), "{answer}");
        }
    }
    let mut sender = agent.http2().await;
    for _ in 0..20 {
        let request = Request::post(agent.url("/")).body(body(vec![b'x'; LENGTH])).expect("valid");
        let response = sender.send_request(request).await.expect("a response");
        assert_eq!(response.status(), 413);
        assert_eq!(response.into_body().collect().await.expect("complete").to_bytes(), "large");
    }
}
