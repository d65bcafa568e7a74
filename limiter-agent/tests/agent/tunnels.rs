//! Tests connections that were upgraded to a protocol that the agent does not know, and requests for an upgrade that a
//! rule refuses or the app ignores.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};

use crate::support::{Agent, App, PATIENCE, accept, policy, read_head, snapshot};

/// An app that switches to the protocol `tcp`, and then does this with each connection.
async fn switching<F: Future<Output = ()> + Send>(then: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> SocketAddr {
    let then = Arc::new(then);
    let app = accept(move |mut stream| {
        let then = Arc::clone(&then);
        async move {
            read_head(&mut stream).await.expect("a request");
            let switching = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: tcp\r\n\r\n";
            stream.write_all(switching).await.expect("sent");
            then(stream).await;
        }
    });
    app.await
}

async fn open(agent: &Agent) -> TcpStream {
    let mut client = agent.connect_with_buffer(16 * 1024).await;
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: tcp\r\n\r\n").await.expect("sent");
    let head = read_head(&mut client).await.expect("a response");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    client
}

#[tokio::test]
async fn an_app_that_has_closed_its_side_still_gets_everything() {
    let (got, mut received) = mpsc::unbounded_channel();
    let app = switching(move |mut stream| {
        let got = got.clone();
        async move {
            stream.shutdown().await.expect("open");
            let mut buffer = [0; 64];
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                got.send(String::from_utf8_lossy(&buffer[..count]).into_owned()).expect("the test runs");
            }
        }
    });
    let agent = Agent::start(app.await, &[]);
    let mut client = open(&agent).await;
    assert_eq!(client.read(&mut [0; 1]).await.expect("open"), 0, "the app has closed its side");
    for part in ["AAA", "BBB", "CCC", "DDD", "EEE", "FFF"] {
        client.write_all(part.as_bytes()).await.expect("open");
        let arrived = timeout(PATIENCE, received.recv()).await.expect("the app gets each part");
        assert_eq!(arrived.as_deref(), Some(part));
    }
}

/// Waits until the other side has acknowledged all data and the end.
async fn is_acknowledged(stream: &TcpStream) {
    let [local, peer] = [stream.local_addr(), stream.peer_addr()].map(|address| address.expect("connected").port());
    let (local, peer) = (format!(":{local:04X}"), format!(":{peer:04X}"));
    let has_ended = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // 05 is FIN-WAIT-2.
        fields.len() > 3 && fields[1].ends_with(&local) && fields[2].ends_with(&peer) && fields[3] == "05"
    };
    let all_sockets = || std::fs::read_to_string("/proc/net/tcp").expect("the sockets");
    while !all_sockets().lines().any(has_ended) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A connection with unread bytes would be reset, and the client would not get what it has not read yet.
#[tokio::test]
async fn a_client_that_still_sends_gets_the_end_of_an_app_that_has_closed() {
    const LENGTH: usize = 200_000;
    let (closes, mut closed) = mpsc::unbounded_channel();
    let app = switching(move |mut stream| {
        let closes = closes.clone();
        async move {
            stream.write_all(&vec![1; LENGTH]).await.expect("sent");
            stream.shutdown().await.expect("open");
            is_acknowledged(&stream).await;
            drop(stream);
            closes.send(()).expect("the test runs");
        }
    });
    let agent = Agent::start(app.await, &[]);
    let mut client = open(&agent).await;
    timeout(PATIENCE, closed.recv()).await.expect("the agent takes everything").expect("the app runs");
    let (mut read, mut buffer) = (0, [0; 4096]);
    loop {
        let count = timeout(PATIENCE, client.read(&mut buffer)).await.expect("an end").expect("no reset");
        if count == 0 {
            break;
        }
        read += count;
        client.write_all(b"x").await.expect("open");
    }
    assert_eq!(read, LENGTH);
}

/// While the client reads nothing, the agent cannot read the end of the app.
#[tokio::test]
async fn a_client_that_reads_nothing_does_not_keep_its_permit() {
    let app = switching(async |mut stream| {
        let _ = stream.write_all(&vec![0; 64 * 1024 * 1024]).await;
    });
    let agent = Agent::start(app.await, &["--stall-timeout", "3s"]);
    let rule = json!({"name": "r", "action": "Limit", "concurrency": {"name": "parallel", "limit": 1}});
    agent.apply(&snapshot(1, &[policy("p", &[rule])])).await;
    let client = open(&agent).await;
    let series = "weir_in_flight_requests{namespace=\"shop\",policy=\"p\",rule=\"r\",limit=\"parallel\"}";
    agent.until_metric(series, 1.0).await;
    agent.until_metric(series, 0.0).await;
    drop(client);
}

/// Some clients send such fields with every request (RFC 9110 section 7.8).
#[tokio::test]
async fn an_upgrade_that_the_agent_ignores_keeps_the_connection_open() {
    let app = App::start().await;
    for in_place in ["on", "off"] {
        let agent = Agent::start(app.address, &["--in-place", in_place]);
        for fields in [
            "connection: Upgrade\r\nupgrade: TLS/1.2",
            "connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABkAAQ\r\nupgrade: h2c",
            "connection: upgrade\r\nupgrade: TLS/1.2, HTTP/2.0\r\nupgrade: h2",
            "upgrade: websocket",
            "connection: upgrade",
        ] {
            let mut client = agent.connect().await;
            for number in 0..3 {
                let request = format!("HEAD /{number} HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n");
                client.write_all(request.as_bytes()).await.expect("open");
                let head = timeout(PATIENCE, read_head(&mut client)).await.expect("a response");
                let head = head.unwrap_or_else(|| panic!("{fields:?}: the connection is closed before {number}"));
                assert!(head.starts_with("HTTP/1.1 200 "), "{fields:?}: {head}");
                assert!(!head.contains("connection: close"), "{fields:?}: {head}");
            }
        }
    }
}

/// hyper keeps the socket for the upgrade. A reset would discard the response.
#[tokio::test]
async fn an_upgrade_that_is_not_taken_ends_without_a_reset() {
    const LENGTH: usize = 3_000_000;
    let app = App::start().await;
    let denied = json!({"name": "denied", "action": "Deny", "match": [{"paths": ["/denied"]}]});
    for in_place in ["on", "off"] {
        let agent = Agent::start(app.address, &["--in-place", in_place]);
        agent.apply(&snapshot(1, &[policy("p", std::slice::from_ref(&denied))])).await;
        for (path, status, fields) in
            [("/denied", 403, ""), ("/denied", 403, "content-length: 3000000\r\n"), ("/other", 200, "")]
        {
            let mut client = agent.connect().await;
            let request =
                format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n{fields}\r\n");
            client.write_all(request.as_bytes()).await.expect("sent");
            let sent = timeout(PATIENCE, client.write_all(&vec![b'x'; LENGTH])).await.expect("the agent reads");
            sent.unwrap_or_else(|error| panic!("{path} {fields:?}: {error}"));
            let mut answer = String::new();
            let read = timeout(PATIENCE, client.read_to_string(&mut answer)).await.expect("an end");
            read.unwrap_or_else(|error| panic!("{path} {fields:?}: {error}"));
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {fields:?}: {answer}");
        }
    }
}
