//! WebSocket connections: copied blindly, limited when they are opened.

use futures::{SinkExt, StreamExt};
use http::Response;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, handshake::derive_accept_key, protocol::Role},
};

use crate::support::{Agent, App, daily, empty, policy, rule, snapshot};

/// An app that sends every message back, and agrees to the compression that it is offered, without knowing any.
async fn echoing() -> App {
    App::serve(async |mut request| {
        let key = request.headers()["sec-websocket-key"].as_bytes();
        let mut switching = Response::builder()
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", derive_accept_key(key));
        let extensions = request.headers().get("sec-websocket-extensions").cloned();
        if let Some(extensions) = &extensions {
            switching = switching.header("sec-websocket-extensions", extensions);
        }
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.expect("upgraded"));
            if extensions.is_some() {
                let (mut reads, mut writes) = tokio::io::split(stream);
                let _ = tokio::io::copy(&mut reads, &mut writes).await;
                return;
            }
            let mut messages = WebSocketStream::from_raw_socket(&mut stream, Role::Server, None).await;
            while let Some(Ok(message)) = messages.next().await {
                if message.is_text() || message.is_binary() {
                    messages.send(message).await.expect("sent");
                }
            }
        });
        switching.body(empty()).expect("valid")
    })
    .await
}

async fn open(agent: &Agent) -> Result<WebSocketStream<TcpStream>, Error> {
    let stream = TcpStream::connect(agent.addresses.listen).await.expect("connected");
    let (socket, _) = client_async(format!("ws://{}/chat", agent.addresses.listen), stream).await?;
    Ok(socket)
}

#[tokio::test]
async fn opening_is_limited_and_messages_are_not() {
    let app = echoing().await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("p", &[rule("connections", &[daily("d", "TokenBucket", 2)])])])).await;
    let mut first = open(&agent).await.expect("opened");
    let mut second = open(&agent).await.expect("opened");
    let refused = open(&agent).await.expect_err("the third of two");
    let Error::Http(response) = refused else { panic!("{refused}") };
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));

    for number in 0..50 {
        for socket in [&mut first, &mut second] {
            let message = Message::text(format!("message {number}"));
            socket.send(message.clone()).await.expect("sent");
            assert_eq!(socket.next().await.expect("an echo").expect("an echo"), message);
        }
    }
    first.close(None).await.expect("sent");
    assert!(first.next().await.expect("a close").expect("a close").is_close());
    assert!(first.next().await.is_none(), "closed in order");
    assert_eq!(agent.counts(0, 0).await, [2, 1, 0], "connections, not messages");
}

#[tokio::test]
async fn what_both_sides_agree_on_is_theirs() {
    let app = echoing().await;
    let agent = Agent::start(app.address, &[]);
    let mut stream = TcpStream::connect(agent.addresses.listen).await.expect("connected");
    let opening = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n\r\n";
    stream.write_all(opening.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a head"));
    }
    let head = String::from_utf8(head).expect("text");
    assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
    assert!(head.contains("sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n"), "{head}");
    // "Hello" compressed, from RFC 7692 section 7.2.3.1, and bytes that are no frame at all.
    let bytes = [0xc1, 0x07, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0xff, 0xff, 0xff];
    stream.write_all(&bytes).await.expect("sent");
    let mut echo = [0; 12];
    stream.read_exact(&mut echo).await.expect("an echo");
    assert_eq!(echo, bytes);
}
