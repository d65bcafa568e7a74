//! Tests that clients of the agent's own ports, which need no credentials for some requests, take little of its memory.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::{PATIENCE, start};

/// The agent keeps an incomplete head in memory, and the client does not send the rest.
#[tokio::test]
async fn a_long_head_is_refused_before_it_is_complete() {
    const LONG: usize = 16 * 1024;
    let (_app, agent) = start().await;
    for port in [agent.addresses.telemetry, agent.addresses.control] {
        let mut head = b"GET /healthz HTTP/1.1\r\nx-long: ".to_vec();
        head.resize(LONG, b'a');
        let mut stream = TcpStream::connect(port).await.expect("connected");
        stream.write_all(&head).await.expect("sent");
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("in time").expect("a clean close");
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer:?}");
    }
}
