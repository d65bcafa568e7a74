//! Tests idle connections that are kept open.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::support::{Agent, PATIENCE, start};

/// Sends a request and reads its response.
async fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    answered(stream).await;
}

async fn answered(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        answer.push(timeout(PATIENCE, stream.read_u8()).await.expect("before the timeout").expect("a response"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn idle_connections_are_parked_and_served_again() {
    const CLIENTS: u8 = 50;
    let (app, agent) = start().await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = agent.connect().await;
        ask(&mut client).await;
        clients.push(client);
    }
    for _ in 0..2 {
        agent.until_metric("weir_connections_parked", CLIENTS.into()).await;
        assert_eq!(agent.metric("weir_connections").await, Some(CLIENTS.into()));
        for client in &mut clients {
            ask(client).await;
        }
    }

    // A client that has begun a request is not parked, and can complete the request.
    let (last, others) = clients.split_last_mut().expect("at least one client");
    last.write_all(b"GET / HTTP/1.1\r\n").await.expect("sent");
    agent.until_metric("weir_connections_parked", (CLIENTS - 1).into()).await;
    last.write_all(b"host: a\r\n\r\n").await.expect("sent");
    answered(last).await;
    ask(&mut others[0]).await;
    assert_eq!(agent.metric("weir_connections_accepted_total").await, Some(CLIENTS.into()));
    assert_eq!(app.requests(), 3 * u64::from(CLIENTS) + 2);
}

/// A frozen node continues after the idle timeout, and the requests of its clients have arrived in the meantime.
#[tokio::test]
async fn requests_that_arrive_while_the_agent_is_stopped_are_served() {
    let (app, _) = start().await;
    for in_place in ["on", "off"] {
        let agent = Agent::start(app.address, &["--idle-timeout", "3s", "--in-place", in_place]);
        let mut clients = Vec::new();
        for _ in 0..10 {
            let mut client = agent.connect().await;
            ask(&mut client).await;
            clients.push(client);
        }
        agent.until_metric("weir_connections_parked", 10.0).await;
        agent.suspend().await;
        for client in &mut clients {
            client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        }
        sleep(Duration::from_millis(3_100)).await;
        agent.go_on();
        for client in &mut clients {
            answered(client).await;
        }
    }
}
