//! Tests that no client makes the rate limit service (`weir-agent rls`) use much memory. The messages are bytes, because
//! the types of a library would take the memory here.

use std::time::Duration;

use bytes::Bytes;
use futures::{
    StreamExt,
    stream::{iter, pending},
};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2::Builder,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::{sleep, timeout},
};

use crate::{
    quotas,
    service::{METHOD, OK, ask, channel, per_user, question},
    support::{Agent, Body, PATIENCE, body, request, snapshot},
};

const EVICTED: &str = "weir_connections_evicted_total";

/// The maximum size of a field of a report.
const LARGEST: usize = 1024 * 1024;

/// A memory that the service does not exceed in these tests, although a pod has 256 MiB.
const LITTLE_KIB: u64 = 32 * 1024;

/// A field of a message with a length.
fn field(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2];
    let mut length = value.len();
    while length >= 0x80 {
        bytes.push(u8::try_from(length % 0x80).expect("seven bits") | 0x80);
        length /= 0x80;
    }
    bytes.push(u8::try_from(length).expect("seven bits"));
    [bytes, value.to_vec()].concat()
}

/// The message with the domain `shop` and these fields, after its prefix in gRPC.
fn message(fields: &[u8]) -> Vec<u8> {
    let message = [&field(1, b"shop"), fields].concat();
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&[0], &length[..], &message].concat()
}

fn call(path: &str, body: Body) -> Request<Body> {
    let request = Request::post(format!("http://agent.test{path}"));
    request.header("content-type", "application/grpc").header("te", "trailers").body(body).expect("valid")
}

/// The status of a gRPC call and its message.
async fn status(agent: &Agent, path: &str, message: Vec<u8>) -> (String, String) {
    let response = agent.http2().await.send_request(call(path, body(message))).await.expect("a response");
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.expect("a complete body").trailers().cloned().unwrap_or_default();
    let of = |name: &str| {
        let of = |headers: &HeaderMap| headers.get(name).map(|value| value.to_str().expect("text").to_owned());
        of(&head.headers).or_else(|| of(&trailers)).unwrap_or_default()
    };
    (of("grpc-status"), of("grpc-message"))
}

#[tokio::test]
async fn lists_of_empty_elements_take_little_memory() {
    const BYTES: usize = 2_500_000;
    let agent = Agent::service(&[]);
    let before = agent.peak_kib();
    let many = |element: &[u8]| element.repeat(BYTES / element.len());
    let distinct: Vec<u8> =
        (0..90_000).flat_map(|number| field(1, &field(1, format!("{number:06}").as_bytes()))).collect();
    for (path, fields, told) in [
        (METHOD, many(&field(2, &field(1, b""))), "descriptors: has 625000,"),
        (METHOD, field(2, &many(&field(1, b""))), "descriptors[0].entries: has 1250000,"),
        (quotas::METHOD, many(&field(2, &field(1, &field(1, b"")))), "bucket_quota_usages.bucket_id.bucket: a key"),
        (quotas::METHOD, field(2, &field(1, &distinct)), "bucket_quota_usages.bucket_id.bucket: has 90000,"),
    ] {
        let (code, text) = status(&agent, path, message(&fields)).await;
        assert!(code == "3" && text.replace("%20", " ").starts_with(told), "{code} {text}");
    }
    let json = |entries: usize| {
        let entries = Bytes::from(vec!["{}"; entries].join(","));
        let body = [br#"{"domain":"shop","descriptors":[{"entries":["#, &*entries, b"]}]}"].concat();
        agent.client.send(request("POST", &agent.url("/json"), &[], body))
    };
    let refused = json(80_000).await;
    let text = String::from_utf8_lossy(refused.body());
    assert!(refused.status() == 400 && text.contains("has 80000, and at most 50"), "{text}");
    let grown = agent.peak_kib() - before;
    assert!(grown < LITTLE_KIB, "{grown} KiB");
    assert_eq!(json(87_400).await.status(), 413);
}

/// A body that begins with these pieces and does not end.
fn endless(pieces: impl IntoIterator<Item = Bytes, IntoIter: Send + Sync + 'static>) -> Body {
    let pieces = iter(pieces).map(|piece| Ok(Frame::data(piece)));
    BodyExt::boxed(StreamBody::new(pieces.chain(pending())))
}

/// A report with a field of the largest size, without its last bytes.
fn incomplete() -> Body {
    const PIECE: usize = 16 * 1024;
    let report = message(&field(2, &[0; LARGEST]));
    let first = report[..PIECE - 1].to_vec();
    let others = std::iter::repeat_n(Bytes::from_static(&[0; PIECE]), LARGEST / PIECE - 1);
    endless([first.into()].into_iter().chain(others))
}

async fn until_evicted(agent: &Agent, count: f64) {
    let evicted = async {
        while agent.metric(EVICTED).await < Some(count) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, evicted).await.expect("connections are evicted");
}

#[tokio::test]
async fn all_incomplete_messages_together_have_a_bound_and_others_are_answered() {
    const CONNECTIONS: usize = 8;
    const STREAMS: usize = 16;
    let agent = Agent::service(&[]);
    agent.apply(&snapshot(1, &[per_user(1_000_000)])).await;
    let other = channel(&agent).await;
    ask(&other, question(&[("user", "ann")])).await.expect("an answer");
    let before = agent.peak_kib();
    for _ in 0..CONNECTIONS {
        let mut sender = agent.http2().await;
        for _ in 0..STREAMS {
            sender.ready().await.expect("connected");
            tokio::spawn(sender.send_request(call(quotas::METHOD, incomplete())));
        }
    }
    let questions = async {
        loop {
            let answer = ask(&other, question(&[("user", "ann")])).await.expect("an answer");
            assert_eq!(answer.overall_code, OK);
        }
    };
    tokio::select! {
        () = until_evicted(&agent, 1.0) => {}
        () = questions => {}
    }
    let grown = agent.peak_kib() - before;
    assert!(grown < 3 * LITTLE_KIB, "{grown} KiB");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_leaves_no_memory_while_its_stream_is_open() {
    const STREAMS: usize = 12;
    const USAGES: usize = 64;
    let agent = Agent::service(&[]);
    let before = agent.resident_kib();
    // A bucket with such a value gets no assignment.
    let value = vec![b'x'; LARGEST / 4];
    let usage = field(2, &field(1, &field(1, &[field(1, b"user"), field(2, &value)].concat())));
    let report = Bytes::from(message(&usage.repeat(USAGES)));
    for number in 1..=STREAMS {
        let request = call(quotas::METHOD, endless([report.clone()]));
        let mut response = agent.http2().await.send_request(request).await.expect("a response");
        tokio::spawn(async move { while let Some(Ok(_)) = response.frame().await {} });
        agent.until_metric("weir_quota_buckets_refused_total", (number * USAGES) as f64).await;
    }
    let grown = agent.resident_kib().saturating_sub(before);
    assert!(grown < 2 * LITTLE_KIB, "{grown} KiB");
    assert_eq!(agent.metric("weir_quota_streams").await, Some(STREAMS as f64));
}

/// Clients report many large buckets and do not read the assignments.
#[tokio::test]
async fn assignments_that_nobody_reads_take_little_memory() {
    const STREAMS: usize = 20;
    const BUCKETS: usize = 1_000;
    /// The service reads more buckets of this size before it writes.
    const AT_LEAST: usize = 15;
    let agent = Agent::service(&[]);
    let before = agent.peak_kib();
    let usage = |number: usize| {
        let value = format!("{number:04000}");
        field(2, &field(1, &field(1, &[field(1, b"user"), field(2, value.as_bytes())].concat())))
    };
    let report = Bytes::from(message(&(0..BUCKETS).flat_map(usage).collect::<Vec<_>>()));
    let mut open: Vec<http::Response<Incoming>> = Vec::new();
    for number in 1..=STREAMS {
        let io = TokioIo::new(agent.connect().await);
        let http = Builder::new(TokioExecutor::new()).initial_stream_window_size(1).handshake(io);
        let (mut sender, connection) = http.await.expect("HTTP/2");
        tokio::spawn(connection);
        let request = call(quotas::METHOD, endless([report.clone()]));
        open.push(sender.send_request(request).await.expect("a response"));
        // The service reads some buckets at a time, and the next ones after the client took the assignments.
        let read = async {
            while agent.metric("weir_quota_buckets").await < Some((number * AT_LEAST) as f64) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, read).await.expect("each report is read");
    }
    let grown = agent.peak_kib() - before;
    assert!(grown < 3 * LITTLE_KIB / 2, "{grown} KiB");
}

/// Clients that take no assignments, or only a byte of them, can fill the windows of their streams. So these windows count.
#[tokio::test]
async fn streams_whose_assignments_are_not_read_are_evicted() {
    const CONNECTIONS: usize = 100;
    const STREAMS: usize = 2;
    let usage = |number: usize| {
        let value = format!("{number:04000}");
        field(2, &field(1, &field(1, &[field(1, b"user"), field(2, value.as_bytes())].concat())))
    };
    // The assignments of 30 buckets are two messages, and that of one bucket is one.
    for (window, buckets) in [(1, 30), (0, 1)] {
        let agent = Agent::service(&[]);
        let report = Bytes::from(message(&(0..buckets).flat_map(usage).collect::<Vec<_>>()));
        for _ in 0..CONNECTIONS {
            let io = TokioIo::new(agent.connect().await);
            let http = Builder::new(TokioExecutor::new()).initial_stream_window_size(window).handshake(io);
            let (mut sender, connection) = http.await.expect("HTTP/2");
            tokio::spawn(connection);
            for _ in 0..STREAMS {
                let response = sender.send_request(call(quotas::METHOD, endless([report.clone()])));
                tokio::spawn(async move {
                    let _open = response.await;
                    pending::<()>().next().await
                });
            }
        }
        until_evicted(&agent, 1.0).await;
    }
}

#[tokio::test]
async fn an_incomplete_question_does_not_protect_its_connection() {
    let agent = Agent::service(&["--max-connections", "4"]);
    let mut stuck = agent.connect().await;
    stuck.write_all(b"POST /json HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{").await.expect("sent");
    agent.until_metric("weir_connections", 1.0).await;
    let idle = channel(&agent).await;
    ask(&idle, question(&[("user", "ann")])).await.expect("an answer");
    // One address can have half of the connections.
    let new = channel(&agent).await;
    ask(&new, question(&[("user", "ann")])).await.expect("an answer");
    let read = timeout(PATIENCE, stuck.read_u8()).await.expect("the connection ends");
    assert!(read.is_err());
    ask(&idle, question(&[("user", "ann")])).await.expect("the connection is open");
    assert_eq!(agent.metric(EVICTED).await, Some(1.0));
}
