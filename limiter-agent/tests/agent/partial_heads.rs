//! Tests clients that begin a request and do not send the rest of its head.

use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    hostile::frames::frame,
    support::{Agent, PATIENCE, daily, policy, rule, snapshot, start},
};

/// A time that is shorter than any timeout of the agent that would end such a connection.
const AT_ONCE: Duration = Duration::from_secs(10);

const EVICTED: &str = "weir_connections_evicted_total";

/// The beginnings of a head that the short path could serve, and of heads that it cannot.
const BEGINNINGS: [&str; 3] = [
    "GET / HTTP/1.1\r\nhost: a\r\nx: ",
    "GET / HTTP/1.0\r\nhost: a\r\nx: ",
    // The first request is complete.
    "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\nGET / HTTP/1.1\r\nx: ",
];

async fn begin(agent: &Agent, beginning: &str, more: usize) -> TcpStream {
    let mut stream = agent.connect().await;
    stream.write_all(beginning.as_bytes()).await.expect("sent");
    stream.write_all("a".repeat(more).as_bytes()).await.expect("sent");
    stream
}

/// Lets many heads begin together, and then end. Each of them gets a buffer of the short path for a moment, and the agent
/// keeps a limited number of those. They would otherwise count as growth if clients happen to arrive together.
async fn fill_spare_buffers(agent: &Agent) {
    const CLIENTS: usize = 700;
    for _ in 0..2 {
        agent.suspend().await;
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(begin(agent, BEGINNINGS[0], 100).await);
        }
        agent.go_on();
        agent.until_metric("weir_connections", CLIENTS as f64).await;
        drop(clients);
        agent.until_metric("weir_connections", 0.0).await;
    }
}

async fn is_served(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        answer.push(timeout(AT_ONCE, stream.read_u8()).await.expect("before the timeout").expect("a response"));
    }
    assert!(answer.starts_with(b"HTTP/1.") && answer[8..].starts_with(b" 200"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_client_that_does_not_complete_its_head_is_evicted() {
    for in_place in ["on", "off"] {
        for beginning in BEGINNINGS {
            let (app, _) = start().await;
            let agent = Agent::start(app.address, &["--max-connections", "4", "--in-place", in_place]);
            let mut partial = Vec::new();
            for _ in 0..4 {
                partial.push(begin(&agent, beginning, 100).await);
                agent.until_metric("weir_connections", partial.len() as f64).await;
            }
            for round in 1..=2 {
                let mut newcomer = begin(&agent, "GET / HTTP/1.1\r\nhost: a\r\n\r\n", 0).await;
                is_served(&mut newcomer).await;
                assert!(agent.metric(EVICTED).await >= Some(f64::from(round)), "{beginning:?}");
                drop(newcomer);
                agent.until_metric("weir_connections", 3.0).await;
                partial.push(begin(&agent, beginning, 100).await);
                agent.until_metric("weir_connections", 4.0).await;
            }
        }
    }
}

#[tokio::test]
async fn a_head_that_arrives_slowly_is_served() {
    let (app, _) = start().await;
    for in_place in ["on", "off"] {
        let agent = Agent::start(app.address, &["--in-place", in_place]);
        for beginning in BEGINNINGS {
            let mut stream = begin(&agent, beginning, 20_000).await;
            let more = if beginning.contains("te:") {
                is_served(&mut stream).await;
                "host: a\r\n"
            } else {
                ""
            };
            // hyper gives the connection back after a second.
            for piece in ["a", "\r", "\n", more, "\r"] {
                sleep(Duration::from_millis(300)).await;
                stream.write_all(piece.as_bytes()).await.expect("sent");
            }
            stream.write_all(b"\n").await.expect("sent");
            is_served(&mut stream).await;
        }
    }
}

/// Empty lines before a request are no request.
#[tokio::test]
async fn empty_lines_keep_no_connection_open() {
    let (app, _) = start().await;
    for in_place in ["on", "off"] {
        let agent = Agent::start(app.address, &["--in-place", in_place, "--header-timeout", "2s"]);
        for beginning in ["\r\n", "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n\r\n"] {
            let mut stream = begin(&agent, beginning, 0).await;
            if beginning.contains("te:") {
                is_served(&mut stream).await;
            }
            let closed = timeout(AT_ONCE, stream.read_u8()).await.expect("the agent closes the connection");
            assert!(closed.is_err(), "{beginning:?}");
        }
    }
}

#[tokio::test]
async fn other_protocols_are_refused_at_once() {
    let (app, _) = start().await;
    for in_place in ["on", "off"] {
        let agent = Agent::start(app.address, &["--in-place", in_place]);
        for beginning in ["SSH-2.0-x\r\n", "GET / HTTP/3.0\r\n", "\x16\x03\x01\x02\0\x01"] {
            let mut stream = begin(&agent, beginning, 0).await;
            let mut answer = String::new();
            timeout(AT_ONCE, stream.read_to_string(&mut answer)).await.expect("before the timeout").expect("text");
            assert!(answer.starts_with("HTTP/1.1 400"), "{beginning:?}: {answer}");
        }
    }
}

/// hyper gives the connection back while it has read only a part of the bytes that came with a slow head.
#[tokio::test]
async fn requests_behind_a_slow_head_are_all_answered() {
    const REQUESTS: usize = 200;
    let (_app, agent) = start().await;
    agent.apply(&snapshot(1, &[policy("limits", &[rule("r", &[daily("day", "FixedWindow", 1)])])])).await;
    let mut stream = begin(&agent, "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n", 0).await;
    sleep(Duration::from_millis(300)).await;
    let next = "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n".repeat(REQUESTS - 2);
    let last = "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("\r\n{next}{last}").as_bytes()).await.expect("sent");
    let mut answers = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answers)).await.expect("an end").expect("text");
    assert_eq!(answers.matches("HTTP/1.1 429").count(), REQUESTS - 1);
}

#[tokio::test]
async fn partial_heads_take_little_more_memory_than_their_bytes() {
    const CLIENTS: u64 = 300;
    const BYTES: usize = 30_000;
    for beginning in &BEGINNINGS[..2] {
        let (app, _) = start().await;
        let agent = Agent::start(app.address, &[]);
        fill_spare_buffers(&agent).await;
        let before = agent.resident_kib();
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(begin(&agent, beginning, BYTES).await);
        }
        sleep(Duration::from_secs(3)).await;
        let each = agent.resident_kib().saturating_sub(before) / CLIENTS;
        assert!(each < 2 * BYTES as u64 / 1000, "{each} kB for each of {beginning:?}");
    }
}

#[tokio::test]
async fn all_partial_heads_together_have_a_bound() {
    const CLIENTS: usize = 600;
    let (_app, agent) = start().await;
    fill_spare_buffers(&agent).await;
    let before = agent.resident_kib();
    // All heads arrive together, so the agent reads many of them before an evicted connection can end.
    agent.suspend().await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(begin(&agent, BEGINNINGS[0], 60_000).await);
    }
    agent.go_on();
    let bounded = async {
        while agent.metric(EVICTED).await.is_none_or(|count| count < 300.0) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, bounded).await.expect("connections are evicted");
    let grown = agent.resident_kib().saturating_sub(before);
    assert!(grown < 40_000, "{grown} KiB");
    let mut newcomer = begin(&agent, "GET / HTTP/1.1\r\nhost: a\r\n\r\n", 0).await;
    is_served(&mut newcomer).await;
}

/// The beginnings of an HTTP/2 head: a part of its only frame, and its first frames.
fn http2_beginnings() -> [Vec<u8>; 3] {
    // A literal field: the name `x` and a value of 100 bytes.
    let field = [&b"\0\x01x\x64"[..], &[b'y'; 100]].concat();
    let open = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, b""), &frame(4, 1, 0, b"")].concat();
    let (part, first, more) = (frame(1, 5, 1, &field), frame(1, 1, 1, &field), frame(9, 0, 1, &field));
    [&part[..50], &first, &[first.clone(), more].concat()].map(|head| [&open[..], head].concat())
}

/// Reads to the end of the connection.
async fn is_closed(stream: &mut TcpStream) {
    // A reset is an end, too.
    let _ = timeout(AT_ONCE, stream.read_to_end(&mut Vec::new())).await.expect("the agent closes the connection");
}

#[tokio::test]
async fn the_head_of_an_http2_request_has_the_header_timeout() {
    let (app, _) = start().await;
    let agent = Agent::start(app.address, &["--header-timeout", "1s"]);
    for beginning in http2_beginnings() {
        let mut stream = agent.connect().await;
        stream.write_all(&beginning).await.expect("sent");
        is_closed(&mut stream).await;
    }
    // A head that arrives in time ends its timeout, and the next one has its own. The second head begins in the bytes
    // that end the first one.
    let mut stream = agent.connect().await;
    stream.write_all(&http2_beginnings()[0][..42]).await.expect("sent");
    // `:method: GET`, `:scheme: http`, `:path: /`, `:authority: a`
    let [first, second, third] = [1, 3, 5].map(|id| frame(1, 5, id, b"\x82\x86\x84\x41\x01a"));
    let overlap = [&first[12..], &second[..12]].concat();
    for [begin, end] in [[&first[..12], &overlap], [&[], &second[12..]], [&third[..12], &third[12..]]] {
        stream.write_all(begin).await.expect("sent");
        sleep(Duration::from_millis(700)).await;
        stream.write_all(end).await.expect("sent");
        let mut received = Vec::new();
        while !received.ends_with(b"ok") {
            received.push(timeout(AT_ONCE, stream.read_u8()).await.expect("before the timeout").expect("a response"));
        }
    }
}

#[tokio::test]
async fn all_partial_heads_of_http2_together_have_a_bound() {
    const CLIENTS: usize = 400;
    let (_app, agent) = start().await;
    let [_, _, beginning] = http2_beginnings();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = agent.connect().await;
        stream.write_all(&beginning).await.expect("sent");
        clients.push(stream);
    }
    // 16 MiB have room for 256 heads of the greatest length.
    let bounded = async {
        while agent.metric("weir_connections").await.is_none_or(|count| count > 256.0)
            || agent.metric(EVICTED).await.is_none_or(|count| count < 140.0)
        {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(AT_ONCE, bounded).await.expect("connections are evicted");
    let mut newcomer = begin(&agent, "GET / HTTP/1.1\r\nhost: a\r\n\r\n", 0).await;
    is_served(&mut newcomer).await;
    // Under load, the agent does not read the heads in the order in which they were sent, so any client can be the oldest.
    let ends = clients.into_iter().map(async |mut stream| stream.read_to_end(&mut Vec::new()).await);
    let closed = stream::iter(ends).buffer_unordered(CLIENTS).take(140).count();
    timeout(AT_ONCE, closed).await.expect("the agent closes the connections");
}
