//! Tests HTTP/2 connections whose responses have ended for the app and are still on their way: h2 keeps up to 64 KiB of
//! each response until the client reads.

use std::time::Duration;

use http::Response;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{interval, timeout},
};

use crate::support::{Agent, App, PATIENCE, body};

const STREAMS: u8 = 100;
const LENGTH: usize = 60_000;

/// The number of streams that have ended, and of the bytes of all bodies.
type Received = (usize, usize);

const EVERYTHING: Received = (STREAMS as usize, STREAMS as usize * LENGTH);

async fn app() -> App {
    App::serve(async |_| Response::new(body(vec![b'x'; LENGTH]))).await
}

/// A client with large windows and a small buffer in the kernel, which sends all its requests at once.
async fn ask(agent: &Agent) -> TcpStream {
    let mut stream = agent.connect_with_buffer(16 * 1024).await;
    // The SETTINGS have windows of 16 MiB, and the window of the connection is 1 GiB.
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(b"\0\0\x06\x04\0\0\0\0\0\0\x04\x01\0\0\0\0\0\x04\x08\0\0\0\0\0\x40\0\0\0");
    for stream in 0..STREAMS {
        sent.extend(b"\0\0\x06\x01\x05\0\0\0");
        sent.push(2 * stream + 1);
        sent.extend(b"\x82\x86\x84\x41\x01a");
    }
    stream.write_all(&sent).await.expect("sent");
    stream
}

/// Counts the frames of DATA, the last of which has the flag END_STREAM.
fn received(mut frames: &[u8]) -> Received {
    let mut received = (0, 0);
    while let [a, b, c, kind, flags, _, _, _, _, rest @ ..] = frames {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some(next) = rest.get(length..) else { break };
        if *kind == 0 {
            received = (received.0 + usize::from(flags & 1), received.1 + length);
        }
        frames = next;
    }
    received
}

/// Reads until all responses have arrived or the connection ends, at most `piece` bytes in each 50 ms.
async fn read(stream: &mut TcpStream, piece: usize) -> Received {
    let mut frames = Vec::new();
    let mut pace = interval(Duration::from_millis(50));
    let mut bytes = vec![0; piece];
    while received(&frames) != EVERYTHING {
        pace.tick().await;
        match stream.read(&mut bytes).await {
            Ok(count @ 1..) => frames.extend_from_slice(&bytes[..count]),
            Ok(0) | Err(_) => break,
        }
    }
    received(&frames)
}

/// The client reads for many times the idle timeout, because this test is about the rate.
#[tokio::test]
async fn a_slow_steady_reader_gets_all_responses() {
    let app = app().await;
    let agent =
        Agent::start(app.address, &["--idle-timeout", "2s", "--stall-timeout", "2s", "--upstream-http2", "never"]);
    let mut client = ask(&agent).await;
    assert_eq!(timeout(PATIENCE, read(&mut client, 15_000)).await.expect("in time"), EVERYTHING);
}

#[tokio::test]
async fn a_connection_with_unsent_responses_is_not_evicted() {
    const EVICTED: &str = "weir_connections_evicted_total";
    let app = app().await;
    let agent = Agent::start(app.address, &["--max-connections", "1", "--workers", "1", "--upstream-http2", "never"]);
    let mut client = ask(&agent).await;
    let answered = async {
        while app.requests() < STREAMS.into() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, answered).await.expect("the app gets all requests");
    let mut newcomer = agent.connect().await;
    newcomer.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    for _ in 0..50 {
        assert_eq!(agent.metric(EVICTED).await, Some(0.0));
    }
    let (got, status) = tokio::join!(read(&mut client, LENGTH), async {
        let mut start = [0; 12];
        timeout(PATIENCE, newcomer.read_exact(&mut start)).await.expect("in time").expect("a response");
        start
    });
    assert_eq!((got, &status), (EVERYTHING, b"HTTP/1.1 200"));
    assert_eq!(agent.metric(EVICTED).await, Some(1.0), "an idle connection has made room");
}
