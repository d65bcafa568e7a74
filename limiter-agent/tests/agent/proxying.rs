//! Tests what passes through the proxy, and what happens when one side fails.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::mpsc,
};

use crate::support::{
    Agent, App, Body, Client, ClosedPort, PATIENCE, accept, body, daily, empty, policy, read_head, request, rule,
    snapshot, start,
};

/// A request or response body that the test writes in pieces.
fn channel() -> (mpsc::Sender<Bytes>, Body) {
    let (send, mut parts) = mpsc::channel(1);
    let stream = futures::stream::poll_fn(move |cx| parts.poll_recv(cx));
    (send, StreamBody::new(futures::StreamExt::map(stream, |part| Ok(Frame::data(part)))).boxed())
}

/// One HTTP/1.1 connection to the agent.
async fn connect(agent: &Agent) -> http1::SendRequest<Body> {
    let stream = agent.connect().await;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    sender
}

async fn echo(request: Request<Incoming>) -> Response<Body> {
    Response::new(request.into_body().boxed())
}

#[tokio::test]
async fn bodies_stream_both_ways_at_once() {
    let app = App::serve(echo).await;
    let agent = Agent::start(app.address, &[]);
    let (send, upload) = channel();
    let request = Request::post("/").header("host", "a").body(upload).expect("valid");
    let sending = tokio::spawn({
        let mut sender = connect(&agent).await;
        async move { sender.send_request(request).await.expect("a response") }
    });
    send.send("first".into()).await.expect("open");
    let mut response = sending.await.expect("no panic").into_body();
    let first = response.frame().await.expect("a frame").expect("no error").into_data().expect("data");
    assert_eq!(first, "first", "the data came back before the request's body ended");

    // 64 MiB are more than all buffers together can store.
    const PART: usize = 64 * 1024;
    tokio::spawn(async move {
        for number in 0..1024 {
            let fill = u8::try_from(number % 251).expect("small");
            send.send(vec![fill; PART].into()).await.expect("open");
        }
    });
    let mut seen = 0;
    while let Some(frame) = response.frame().await {
        let data = frame.expect("no error").into_data().expect("data");
        for byte in data {
            assert_eq!(usize::from(byte), (seen / PART) % 251, "at {seen}");
            seen += 1;
        }
    }
    assert_eq!(seen, 1024 * PART);
}

#[tokio::test]
async fn the_app_sees_the_request_as_it_came() {
    let (tell, mut seen) = mpsc::unbounded_channel();
    let app = App::serve(move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            let (head, incoming) = request.into_parts();
            let sent = incoming.collect().await.expect("a body").to_bytes();
            tell.send((head.method, head.uri, head.headers, sent)).expect("the test waits");
            let mut response = Response::new(body("made"));
            *response.status_mut() = StatusCode::CREATED;
            response.headers_mut().append(header::SET_COOKIE, "a=1".parse().expect("valid"));
            response.headers_mut().append(header::SET_COOKIE, "b=2".parse().expect("valid"));
            response.headers_mut().insert(header::CONNECTION, "x-hop".parse().expect("valid"));
            response.headers_mut().insert("x-hop", "1".parse().expect("valid"));
            response
        }
    })
    .await;
    let agent = Agent::start(app.address, &["--ambiguous-paths", "keep"]);
    let fields =
        [("x-forwarded-for", "192.0.2.1"), ("connection", "x-private"), ("x-private", "1"), ("x-tier", "free")];
    let sent = request("PATCH", &agent.url("/a%20b/../%61//?q=%2f&r"), &fields, "content");
    let response = Client::new().send(sent).await;

    let (method, uri, headers, content) = seen.recv().await.expect("the app was asked");
    assert_eq!((method.as_str(), uri.to_string().as_str()), ("PATCH", "/a%20b/../%61//?q=%2f&r"));
    assert_eq!(content, "content");
    let host = agent.addresses.listen.to_string();
    let expected: HeaderMap = [
        ("host", host.as_str()),
        ("content-length", "7"),
        ("x-tier", "free"),
        ("x-forwarded-for", "192.0.2.1, 127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", &host),
    ]
    .into_iter()
    .map(|(name, value)| (name.parse().expect("valid"), value.parse().expect("valid")))
    .collect();
    assert_eq!(headers, expected);

    assert_eq!((response.status().as_u16(), response.body()), (201, &Bytes::from("made")));
    assert_eq!(response.headers().get_all(header::SET_COOKIE).iter().count(), 2);
    assert!(
        !response.headers().contains_key("x-hop") && !response.headers().contains_key("connection"),
        "{response:?}"
    );
}

#[tokio::test]
async fn old_and_odd_requests_are_understood() {
    let app = App::serve(async |request: Request<Incoming>| {
        let text = format!("{} {} {:?}", request.method(), request.uri(), request.headers().get("host"));
        let sent = request.into_body().collect().await.expect("a body").to_bytes();
        Response::new(body(format!("[{text} {}]", sent.len())))
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    let at_app = format!("[GET / Some(\"{}\") 0]", app.address);
    const ONE_HOST: &str = "exactly one Host header in HTTP/1.1, :authority or Host in HTTP/2\n";
    for (sent, status, ending) in [
        ("GET / HTTP/1.0\r\n\r\n", "1.0 200", at_app.as_str()),
        (
            "GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n{close}3\r\nabc\r\n0\r\n\r\n",
            "1.1 200",
            "[GET / Some(\"a\") 3]",
        ),
        ("HEAD / HTTP/1.1\r\nhost: a\r\n{close}", "1.1 200", "\r\n\r\n"),
        ("GET / HTTP/1.1\r\n{close}", "1.1 400", ONE_HOST),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n{close}", "1.1 400", ONE_HOST),
        ("CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n{close}", "1.1 501", "this is a reverse proxy\n"),
        (
            "GET / HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade, close\r\n\r\n",
            "1.1 200",
            "[GET / Some(\"a\") 0]",
        ),
        ("GET / HTTP/9\r\n\r\n", "1.1 400", "\r\n\r\n"),
    ] {
        let sent = sent.replace("{close}", "connection: close\r\n\r\n");
        let answer = agent.raw(&sent).await;
        assert!(answer.starts_with(&format!("HTTP/{status}")) && answer.ends_with(ending), "{sent:?}: {answer:?}");
        let of_head = sent.starts_with("HEAD").then_some("content-length: 20\r\n");
        assert!(of_head.is_none_or(|length| answer.contains(length)), "the length that GET would have: {answer}");
    }
}

/// Each sender of TE in HTTP/1 names it in `Connection` (RFC 9110 section 10.1.4), and HTTP/2 has no such field.
#[tokio::test]
async fn te_goes_to_the_app_as_a_field_of_its_connection() {
    let echo = async |request: Request<Incoming>| {
        let of = |name: &str| request.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
        Response::new(body(format!("{:?}", [of("te"), of("connection"), of("upgrade")].map(Option::unwrap_or_default))))
    };
    let (old, new) = (App::serve(echo).await, App::serve_http2(echo).await);
    let agents = [&old, &new].map(|app| Agent::start(app.address, &[]));
    for (fields, expected) in [
        (&[("te", "trailers"), ("connection", "te")][..], r#"["trailers", "te", ""]"#),
        (&[("te", "trailers")], r#"["trailers", "te", ""]"#),
        (&[("te", "gzip"), ("connection", "te")], r#"["", "", ""]"#),
        (&[("te", "trailers"), ("connection", "upgrade, te"), ("upgrade", "x")], r#"["trailers", "upgrade, te", "x"]"#),
        (&[("connection", "upgrade"), ("upgrade", "x")], r#"["", "upgrade", "x"]"#),
    ] {
        let response = agents[0].get("/", fields).await;
        assert_eq!(String::from_utf8_lossy(response.body()), expected, "{fields:?}");
    }
    for (agent, expected) in agents.iter().zip([r#"["trailers", "te", ""]"#, r#"["trailers", "", ""]"#]) {
        let request = Request::get("http://a/").header("te", "trailers").body(empty()).expect("valid");
        let response = agent.http2().await.send_request(request).await.expect("a response");
        let answer = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(String::from_utf8_lossy(&answer), expected);
    }
}

#[tokio::test]
async fn the_agent_counts_as_a_proxy_in_max_forwards() {
    let app = App::serve(async |request: Request<Incoming>| {
        Response::new(body(format!("[{} {:?}]", request.method(), request.headers().get("max-forwards"))))
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("shop", &[rule("all", &[daily("d", "FixedWindow", 100)])])])).await;
    for (method, fields, status, expected) in [
        ("OPTIONS", "max-forwards: 1\r\n", 200, "[OPTIONS Some(\"0\")]"),
        ("TRACE", "Max-Forwards: 10\r\n", 200, "[TRACE Some(\"9\")]"),
        ("OPTIONS", "", 200, "[OPTIONS None]"),
        // With other methods, a proxy may ignore this field.
        ("GET", "max-forwards: 0\r\n", 200, "[GET Some(\"0\")]"),
        ("OPTIONS", "max-forwards: 0\r\n", 200, ""),
        ("TRACE", "max-forwards: 0\r\n", 501, "which it does not support\n"),
        ("OPTIONS", "max-forwards: x\r\n", 400, "Max-Forwards must be one number\n"),
    ] {
        let sent = format!("{method} / HTTP/1.1\r\nhost: a\r\n{fields}connection: close\r\n\r\n");
        let answer = agent.raw(&sent).await;
        let (head, content) = answer.split_once("\r\n\r\n").expect("a head");
        let is_right = content == expected || (!expected.is_empty() && content.ends_with(expected));
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")) && is_right, "{sent:?}: {answer:?}");
        assert_eq!(answer.contains("ratelimit"), status != 400, "{sent:?}: {answer:?}");
    }
    let mut sender = agent.http2().await;
    for (hops, expected) in [("2", "[OPTIONS Some(\"1\")]"), ("0", "")] {
        let request = Request::options("http://a/").header("max-forwards", hops).body(empty()).expect("valid");
        let response = sender.send_request(request).await.expect("a response");
        let status = response.status();
        let answer = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!((status.as_u16(), &*answer), (200, expected.as_bytes()), "{hops}");
    }
    assert_eq!(app.requests(), 5);
}

#[tokio::test]
async fn an_app_that_does_not_want_the_body_says_so_instead_of_100() {
    let app = App::serve(async |_: Request<Incoming>| {
        Response::builder().status(StatusCode::PAYLOAD_TOO_LARGE).body(body("no")).expect("valid")
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";
    let answer = agent.raw(head).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.ends_with("no"), "{answer}");
}

#[tokio::test]
async fn a_refused_upload_gets_to_see_its_answer() {
    let (_app, agent) = start().await;
    agent.apply(&snapshot(1, &[policy("p", &[rule("all", &[daily("d", "TokenBucket", 1)])])])).await;
    assert_eq!(agent.get("/", &[]).await.status(), 200);

    let expecting = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n\r\n";
    let answer = agent.raw(expecting).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");

    // Both uploads use one connection, because the agent reads and discards the first body.
    let mut sender = connect(&agent).await;
    for _ in 0..2 {
        sender.ready().await.expect("kept alive");
        let upload = Request::post("/").header("host", "a").body(body(vec![b'x'; 200 * 1024])).expect("valid");
        let response = sender.send_request(upload).await.expect("a response");
        assert_eq!(response.status(), 429);
        response.into_body().collect().await.expect("a complete body");
    }
}

/// An answer after the whole body is not the last one on its connection.
#[tokio::test]
async fn an_app_that_reads_an_expected_body_keeps_the_connection() {
    let app = App::serve(async |request: Request<Incoming>| {
        assert_eq!(request.headers()["expect"], "100-continue");
        Response::new(body(request.into_body().collect().await.expect("a body").to_bytes()))
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    for (framing, sent) in
        [("content-length: 2", "ok"), ("transfer-encoding: chunked\r\ntrailer: x", "2\r\nok\r\n0\r\nx: y\r\n\r\n")]
    {
        let mut stream = agent.connect().await;
        for _ in 0..2 {
            let head = format!("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n{framing}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("sent");
            assert_eq!(read_head(&mut stream).await.expect("an interim answer"), "HTTP/1.1 100 Continue\r\n\r\n");
            stream.write_all(sent.as_bytes()).await.expect("sent");
            let answer = read_head(&mut stream).await.expect("a response");
            assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("connection: close"), "{framing}: {answer}");
            let mut body = [0; 2];
            stream.read_exact(&mut body).await.expect("the body");
            assert_eq!(&body, b"ok", "{framing}");
        }
    }
}

/// The client may send its next request instead of the body (RFC 9110 section 10.1.1), or has sent the body already.
#[tokio::test]
async fn an_early_answer_to_an_expected_body_is_the_last_one() {
    let (_app, agent) = start().await;
    let denied = json!({"name": "denied", "action": "Deny"});
    agent.apply(&snapshot(1, &[policy("p", &[denied])])).await;
    for sent in ["", "hello"] {
        let mut stream = agent.connect().await;
        let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        stream.write_all(format!("{head}{sent}").as_bytes()).await.expect("sent");
        let answer = read_head(&mut stream).await.expect("a response");
        assert!(
            answer.starts_with("HTTP/1.1 403") && answer.contains("\r\nconnection: close\r\n"),
            "{sent:?}: {answer}"
        );
        let mut body = String::new();
        stream.read_to_string(&mut body).await.expect("a clean close");
    }
}

#[tokio::test]
async fn an_app_that_is_down_is_a_502_with_the_reason() {
    let closed = ClosedPort::new();
    let nobody = closed.address();
    let agent = Agent::start(nobody, &[]);
    let response = agent.get("/", &[]).await;
    let text = String::from_utf8_lossy(response.body()).into_owned();
    assert_eq!(response.status(), 502);
    assert!(text.contains(&format!("cannot connect to the app at {nobody}")), "{text}");
    let (_, metrics) = agent.telemetry("/metrics").await;
    assert!(metrics.contains("weir_upstream_errors_total{reason=\"refused\"} 1\n"), "{metrics}");
}

/// An app that sends this answer to one request on each connection, and then closes the connection. Returns the address
/// and the number of requests.
async fn closing_app(answer: &'static [u8]) -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let app = accept(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            // On other connections the agent has only checked whether the app accepts connections.
            if matches!(stream.read(&mut [0; 1024]).await, Ok(1..)) {
                count.fetch_add(1, Relaxed);
                let _ = stream.write_all(answer).await;
            }
        }
    });
    (app.await, requests)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_do_not_notice_idle_connections_that_the_app_closed() {
    let (address, connections) = closing_app(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let agent = Agent::start(address, &["--workers", "1"]);
    let statuses = agent.statuses("/", &[], 500).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 500);
    assert_eq!(connections.load(Relaxed), 500);
}

#[tokio::test]
async fn connections_to_the_app_are_reused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let agent = Agent::start(address, &[]);
    let app = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("one connection");
        for _ in 0..50 {
            let mut head = [0; 1024];
            assert!(stream.read(&mut head).await.expect("a request") > 0);
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
                .await
                .expect("sent");
        }
    });
    assert_eq!(agent.statuses("/", &[], 50).await, [200; 50]);
    app.await.expect("one connection was enough");
}

#[tokio::test]
async fn an_app_that_closes_early_is_a_502_without_a_retry() {
    let (address, asked) = closing_app(b"").await;
    let agent = Agent::start(address, &[]);
    let response = agent.client.send(request("POST", &agent.url("/"), &[], "x")).await;
    assert_eq!((response.status().as_u16(), asked.load(Relaxed)), (502, 1), "{response:?}");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request() {
    struct Leaves(mpsc::UnboundedSender<()>);
    impl Drop for Leaves {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (left, mut leaving) = mpsc::unbounded_channel();
    let (tell, mut asked) = mpsc::unbounded_channel();
    let app = App::serve(move |_| {
        let guard = Leaves(left.clone());
        tell.send(()).expect("the test waits");
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    let mut client = agent.connect().await;
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    asked.recv().await.expect("the app was asked");
    drop(client);
    let left = tokio::time::timeout(PATIENCE, leaving.recv()).await.expect("detected before the timeout");
    left.expect("the app's response was dropped");
}

#[tokio::test]
async fn a_websocket_is_a_tunnel() {
    let app = App::serve(async |mut request: Request<Incoming>| {
        assert_eq!(request.headers()["upgrade"], "websocket");
        assert_eq!(request.headers()["connection"], "upgrade");
        assert_eq!(request.headers()["sec-websocket-key"], "k");
        tokio::spawn(async move {
            let mut stream = TokioIo::new(hyper::upgrade::on(&mut request).await.expect("upgraded"));
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).await.expect("bytes");
            stream.write_all(&bytes.map(|byte| byte.to_ascii_uppercase())).await.expect("sent");
            stream.shutdown().await.expect("closed");
        });
        let switching = Response::builder().status(101).header("upgrade", "websocket").header("connection", "upgrade");
        switching.header("sec-websocket-accept", "v").body(empty()).expect("valid")
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("p", &[rule("all", &[daily("d", "TokenBucket", 1)])])])).await;
    let opening =
        "GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n\r\n";
    let mut stream = agent.connect().await;
    stream.write_all(opening.as_bytes()).await.expect("sent");
    let head = read_head(&mut stream).await.expect("a head");
    assert!(
        head.starts_with("HTTP/1.1 101")
            && head.contains("upgrade: websocket")
            && head.contains("sec-websocket-accept: v"),
        "{head}"
    );
    stream.write_all(b"ping").await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("a clean close");
    assert_eq!(answer, "PING");

    let refused = agent.raw(&opening.replace("Upgrade\r\n", "Upgrade, close\r\n")).await;
    assert!(refused.starts_with("HTTP/1.1 429"), "opening a WebSocket is limited like any request: {refused}");
}

/// The agent does not forward a coding that it has not decoded.
#[tokio::test]
async fn a_response_with_an_unsupported_transfer_coding_is_a_502() {
    let app = accept(async |mut stream| {
        let Some(head) = read_head(&mut stream).await else { return };
        let coding = if head.starts_with("GET /gzip") { "gzip" } else { "gzip, chunked" };
        let answer = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.expect("sent");
    });
    let agent = Agent::start(app.await, &["--upstream-http2", "never"]);
    for path in ["/gzip", "/both"] {
        for headers in [&[][..], &[("te", "trailers")]] {
            let answer = agent.get(path, headers).await;
            assert_eq!(answer.status(), 502, "{path} {headers:?}");
            let text = String::from_utf8_lossy(answer.body());
            assert!(text.contains("unexpected transfer-encoding"), "{text}");
        }
    }
}
