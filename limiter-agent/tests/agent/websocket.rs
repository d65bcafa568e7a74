//! Tests WebSocket connections that are copied without parsing, limited when they are opened, or limited by message.

use futures::{SinkExt, StreamExt};
use http::Response;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message,
        handshake::derive_accept_key,
        protocol::{
            CloseFrame, Role,
            frame::{
                Frame,
                coding::{CloseCode, Data, OpCode},
            },
        },
    },
};

use crate::support::{Agent, App, daily, empty, policy, read_head, rule, snapshot, with};

/// An app that echoes every message, and accepts the offered compression without implementing it.
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

/// A limit of messages per day.
fn messages(limit: u64, on_message: &str) -> Value {
    let on_limit = json!({"status": 429, "headers": "IETF", "onMessage": on_message});
    let rule = rule("messages", &[daily("d", "TokenBucket", limit)]);
    snapshot(1, &[policy("p", &[with(rule, json!({"per": "Message", "onLimit": on_limit}))])])
}

async fn open(agent: &Agent) -> Result<WebSocketStream<TcpStream>, Error> {
    let stream = agent.connect().await;
    let (socket, _) = client_async(format!("ws://{}/chat", agent.addresses.listen), stream).await?;
    Ok(socket)
}

/// An app that expects no body in a handshake would read uncounted messages from the body.
#[tokio::test]
async fn a_handshake_with_a_body_is_refused_where_messages_are_counted() {
    let app = echoing().await;
    let agent = Agent::start(app.address, &[]);
    let handshake = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                     sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let ask = async |rest: &str| {
        let mut stream = agent.connect().await;
        stream.write_all(format!("{handshake}{rest}").as_bytes()).await.expect("sent");
        let mut start = [0; 12];
        stream.read_exact(&mut start).await.expect("a response");
        String::from_utf8_lossy(&start).into_owned()
    };
    agent.apply(&messages(1, "Close")).await;
    for (body, status) in [
        ("\r\n", "HTTP/1.1 101"),
        ("content-length: 0\r\n\r\n", "HTTP/1.1 101"),
        ("content-length: 8\r\n\r\n\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}\u{1}", "HTTP/1.1 400"),
        ("content-length: 8\r\n\r\n", "HTTP/1.1 400"),
        ("transfer-encoding: chunked\r\n\r\n8\r\n12345678\r\n0\r\n\r\n", "HTTP/1.1 400"),
        ("transfer-encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 400"),
    ] {
        let before = app.requests();
        assert_eq!(ask(body).await, status, "{body:?}");
        assert_eq!(app.requests() - before, u64::from(status.ends_with("101")), "{body:?}");
    }
}

#[tokio::test]
async fn opening_is_limited_and_messages_are_not() {
    let app = echoing().await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("p", &[rule("connections", &[daily("d", "TokenBucket", 2)])])])).await;
    let mut first = open(&agent).await.expect("opened");
    let mut second = open(&agent).await.expect("opened");
    agent.until_metric("weir_protocol_connections{protocol=\"websocket\"}", 2.0).await;
    agent.until_metric("weir_protocol_connections{protocol=\"http1\"}", 0.0).await;
    let refused = open(&agent).await.expect_err("only two connections are allowed");
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
    assert!(first.next().await.is_none(), "a clean close");
    assert_eq!(agent.counts(0, 0).await, [2, 1, 0], "connections are counted, and not messages");
}

#[tokio::test]
async fn uncounted_connections_may_use_any_extension() {
    let app = echoing().await;
    let agent = Agent::start(app.address, &[]);
    let (mut stream, head) = open_with_compression(&agent).await;
    assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{head}");
    assert!(head.contains("sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n"), "{head}");
    // The bytes are "Hello" in compressed form (RFC 7692 section 7.2.3.1), and bytes that are not a frame.
    let bytes = [0xc1, 0x07, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0xff, 0xff, 0xff];
    stream.write_all(&bytes).await.expect("sent");
    let mut echo = [0; 12];
    stream.read_exact(&mut echo).await.expect("an echo");
    assert_eq!(echo, bytes);
}

/// Opens a connection on which the client can compress if the app agrees. Returns it with the head of the app's
/// response.
async fn open_with_compression(agent: &Agent) -> (TcpStream, String) {
    let mut stream = agent.connect().await;
    let opening = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n\r\n";
    stream.write_all(opening.as_bytes()).await.expect("sent");
    let head = read_head(&mut stream).await.expect("a head");
    (stream, head)
}

#[tokio::test]
async fn messages_over_the_limit_are_answered_with_notices() {
    let app = echoing().await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&messages(10, "Notice")).await;
    let mut socket = open(&agent).await.expect("opening charges nothing");
    // A long message in fragments, each of which is a frame.
    let fragment = vec![b'x'; 100_000];
    for number in 0..20 {
        let opcode = OpCode::Data(if number == 0 { Data::Binary } else { Data::Continue });
        let frame = Frame::message(fragment.clone(), opcode, number == 19);
        socket.send(Message::Frame(frame)).await.expect("sent");
    }
    let echo = socket.next().await.expect("an echo").expect("an echo");
    assert_eq!(echo.into_data().len(), 2_000_000);

    let (mut writes, reads) = socket.split();
    let sending = async {
        for number in 1..100 {
            writes.send(Message::text(format!("message {number}"))).await.expect("sent");
        }
    };
    let receiving = reads.take(99).map(|message| message.expect("a message").into_text().expect("text")).collect();
    let ((), received): (_, Vec<_>) = tokio::join!(sending, receiving);
    let (echoes, notices): (Vec<_>, Vec<_>) = received.iter().partition(|text| text.starts_with("message"));
    assert_eq!(echoes.len(), 9);
    assert_eq!(notices.len(), 90);
    for (text, number) in echoes.iter().zip(1..) {
        assert_eq!(**text, format!("message {number}"));
    }
    for notice in notices {
        let notice: Value = serde_json::from_str(notice).expect("JSON");
        assert!(notice.is_object(), "{notice}");
    }
    assert_eq!(agent.counts(0, 0).await, [10, 90, 0]);
}

/// A rule can have the JSON that the clients of the app know. As the reason of a close, it is cut between characters.
#[tokio::test]
async fn a_rule_can_have_its_own_text_for_messages() {
    let app = echoing().await;
    let agent = Agent::start(app.address, &[]);
    let text = |limit: &str| format!(r#"{{"type":"rate_limit","of": {limit},"error":"{}"}}"#, "é".repeat(50));
    let mut sequence = 0;
    for on_message in ["Notice", "Close"] {
        sequence += 1;
        let on_limit = json!({"status": 429, "headers": "IETF", "onMessage": on_message, "body": text("{limit}")});
        let own = with(
            rule(&on_message.to_lowercase(), &[daily("d", "TokenBucket", 1)]),
            json!({"per": "Message", "onLimit": on_limit}),
        );
        agent.apply(&snapshot(sequence, &[policy("p", &[own])])).await;
        let mut socket = open(&agent).await.expect("opened");
        socket.send(Message::text("hello")).await.expect("sent");
        assert_eq!(socket.next().await.expect("an echo").expect("an echo"), Message::text("hello"));
        socket.send(Message::text("hello")).await.expect("sent");
        let answer = socket.next().await.expect("an answer").expect("an answer");
        if on_message == "Notice" {
            assert_eq!(answer, Message::text(text("1")));
            continue;
        }
        let Message::Close(Some(CloseFrame { code, reason })) = answer else { panic!("{answer:?}") };
        // The 123rd byte is the first half of a character.
        assert_eq!((code, reason.as_str()), (CloseCode::Policy, &text("1")[..122]));
    }
}

#[tokio::test]
async fn counted_connections_have_no_compression_and_no_invalid_frames() {
    let app = echoing().await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&messages(10, "Notice")).await;
    let (mut stream, head) = open_with_compression(&agent).await;
    assert!(head.starts_with("HTTP/1.1 101") && !head.contains("extensions"), "{head}");
    stream.write_all(&[0xc1, 0x87, 0, 0, 0, 0, 0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00]).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("a clean close");
    assert_eq!((answer[0], &answer[2..4]), (0x88, &1002_u16.to_be_bytes()[..]));
    assert_eq!(agent.counts(0, 0).await, [0, 0, 0]);
}

#[tokio::test]
async fn a_drain_does_not_wait_for_counted_connections() {
    let app = echoing().await;
    let mut agent = Agent::start(app.address, &["--drain", "60s"]);
    agent.apply(&messages(10, "Notice")).await;
    let mut socket = open(&agent).await.expect("opened");
    agent.terminate();
    let close = socket.next().await.expect("a close").expect("a close");
    assert!(matches!(close, Message::Close(Some(CloseFrame { code: CloseCode::Away, .. }))), "{close:?}");
    assert!(socket.next().await.is_none(), "a clean close");
    assert!(agent.wait().success());
}
