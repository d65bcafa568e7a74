//! Clients with WebSocket connections, whose messages are limited. They close connections properly, or drop them.

use anyhow::{Context as _, bail, ensure};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{client_async, tungstenite::Message};

use super::{Client, Target};

/// The rule for these clients. It refuses some messages, with a notice.
pub(super) fn rule() -> Value {
    json!({
        "name": "messages",
        "action": "Limit",
        "per": "Message",
        "match": [{ "paths": ["/ws"] }],
        "limits": [{ "name": "limit", "strategy": "TokenBucket", "requests": 60, "periodMillis": 1000 }],
        "onLimit": { "status": 429, "headers": "None", "onMessage": "Notice" },
    })
}

const MESSAGES: usize = 5;

pub(super) struct Sockets {
    round: usize,
}

impl Sockets {
    pub(super) fn new(lane: usize) -> Self {
        Self { round: lane }
    }
}

impl Client for Sockets {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        self.round += 1;
        let stream = TcpStream::connect(target.proxy).await.context("connect")?;
        let (mut socket, _) = client_async("ws://app/ws", stream).await.context("open")?;
        for number in 0..MESSAGES {
            let sent = format!("message {number} {}", "x".repeat(number * 1000));
            socket.send(Message::text(sent.clone())).await.context("send")?;
            match socket.next().await.context("the agent closed the connection")?.context("receive")? {
                Message::Text(back) => {
                    ensure!(back.as_str() == sent || back.starts_with('{'), "the echo is another message");
                }
                other => bail!("received {other:?}"),
            }
        }
        if self.round.is_multiple_of(2) {
            socket.close(None).await.context("close")?;
            while let Some(message) = socket.next().await {
                ensure!(message.context("receive the close frame")?.is_close(), "a message after the close frame");
            }
        }
        Ok(())
    }
}
