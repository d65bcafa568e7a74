//! Detects that an agent has nothing more to do, however busy the machine is.
//!
//! Pauses would not show it: a process without a core for a while looks idle. An agent with one worker handles socket
//! events in their order. So when it has answered a probe, it has read everything that was sent before the probe, and
//! has reacted to it.

use std::{net::SocketAddr, sync::OnceLock, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::PATIENCE;

/// If nothing happens for this long, no timer of the agent is left, above all the one after which an incomplete
/// request moves to hyper's path.
pub(super) const QUIET: Duration = Duration::from_millis(150);

/// The most turns that an effect needs from one side to the other: to the agent, over a new connection to the app,
/// and back.
const TURNS: usize = 4;

/// A probe that starts no request: it is refused at once, before any rule, and the connection closes.
const QUESTION: &[u8] = b"\n";

/// The agent of one lane; set once it runs.
#[derive(Debug, Default)]
pub(super) struct Pulse(OnceLock<SocketAddr>);

impl Pulse {
    pub(super) fn of(&self, agent: SocketAddr) {
        self.0.set(agent).expect("one agent");
    }

    /// Returns once the agent has seen everything that was sent to it.
    pub(super) async fn beat(&self) {
        let asked = async {
            let mut stream = TcpStream::connect(self.0.get().expect("it runs")).await?;
            stream.write_all(QUESTION).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.map(|_| answer)
        };
        let answer = timeout(PATIENCE, asked).await.expect("the worker turns").expect("the agent runs");
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    }

    /// Returns once everything in transit has arrived.
    pub(super) async fn settle(&self) {
        for _ in 0..TURNS {
            self.beat().await;
        }
    }
}
