//! Tests clients that disconnect before their response: the agent cancels the app's work for them.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};

use crate::{
    hostile::frames::{block, greeting, headers},
    support::{Agent, PATIENCE, accept, read_head},
};

#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// The app has begun to handle the request for this path.
    Asked(String),
    /// The connection of that request was closed.
    Ended(String),
}

/// An app that never ends a response, and begins only the responses to `/begun`.
async fn app() -> (SocketAddr, mpsc::UnboundedReceiver<Event>) {
    let (tell, told) = mpsc::unbounded_channel();
    (accept(move |stream| serve(stream, tell.clone())).await, told)
}

async fn serve(mut stream: TcpStream, tell: mpsc::UnboundedSender<Event>) {
    // The agent can open connections that it does not need.
    let Some(head) = read_head(&mut stream).await else { return };
    let path = head.split(' ').nth(1).expect("a target").to_owned();
    if path.starts_with("/begun") {
        let begun = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
        stream.write_all(begun).await.expect("sent");
    }
    let _ = tell.send(Event::Asked(path.clone()));
    let mut rest = [0; 1024];
    while let Ok(1..) = stream.read(&mut rest).await {}
    let _ = tell.send(Event::Ended(path));
}

/// The next event, except the end of requests in `done`.
async fn next(told: &mut mpsc::UnboundedReceiver<Event>, done: &[String]) -> Event {
    loop {
        match timeout(PATIENCE, told.recv()).await.expect("before the timeout").expect("the app runs") {
            Event::Ended(path) if done.contains(&path) => {}
            event => return event,
        }
    }
}

/// Makes the kernel reset the connection when the stream is closed.
fn resets(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).expect("set");
}

/// An HTTP/2 request for a path.
fn http2(path: &str) -> Vec<u8> {
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "a")];
    [greeting(), headers(1, &block(fields), true)].concat()
}

/// The agent must notice the reset before it disconnects an earlier client that only closed its sending side.
#[tokio::test]
async fn a_client_that_resets_its_connection_is_noticed_at_once() {
    let (address, mut told) = app().await;
    let agent = Agent::start(address, &["--workers", "1", "--upstream-http2", "never"]);
    let mut done = Vec::new();
    let http1 = |path: &str, rest: &str| format!("GET {path} HTTP/1.1\r\nhost: a\r\n{rest}").into_bytes();
    for (path, sent) in [
        ("/asked", http1("/asked", "\r\n")),
        ("/begun", http1("/begun", "\r\n")),
        ("/odd", http1("/odd", "te: trailers\r\n\r\n")),
        ("/begun/odd", http1("/begun/odd", "te: trailers\r\n\r\n")),
        ("/body", http1("/body", "content-length: 100000\r\n\r\nhello")),
        ("/chunks", http1("/chunks", "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")),
        ("/http2", http2("/http2")),
        ("/begun/http2", http2("/begun/http2")),
    ] {
        let waiting = format!("/waiting{path}");
        let mut half_closed = agent.connect().await;
        half_closed.write_all(&http1(&waiting, "\r\n")).await.expect("sent");
        half_closed.shutdown().await.expect("closed");
        assert_eq!(next(&mut told, &done).await, Event::Asked(waiting.clone()));

        let mut client = agent.connect().await;
        client.write_all(&sent).await.expect("sent");
        assert_eq!(next(&mut told, &done).await, Event::Asked(path.to_owned()));
        if path.starts_with("/begun") {
            let mut seen = Vec::new();
            while !seen.ends_with(b"hello") && !seen.windows(5).any(|window| window == b"hello") {
                let byte = timeout(PATIENCE, client.read_u8()).await.expect("before the timeout").expect("a response");
                seen.push(byte);
            }
        }
        resets(&client);
        drop(client);
        assert_eq!(
            next(&mut told, &done).await,
            Event::Ended(path.to_owned()),
            "the agent disconnects {waiting} after 5 s"
        );
        done.push(waiting);
    }
    // The other connections are closed, too.
    agent.until_metric("weir_connections", 0.0).await;
}
