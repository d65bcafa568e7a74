//! Detects that an agent has nothing more to do, also on a busy machine.
//!
//! Pauses are not reliable: a process that gets no CPU time looks idle. An agent with one worker handles socket events
//! in their order. So when the agent has answered a probe, it has read all bytes that were sent before the probe, and
//! has reacted to them.

use std::{net::SocketAddr, sync::OnceLock, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::PATIENCE;

/// If nothing happens for this time, no timer of the agent is pending. In particular, the timer that moves an
/// incomplete request to hyper's path has fired.
pub(super) const QUIET: Duration = Duration::from_millis(150);

/// The maximum number of probes until an effect gets from one side to the other: to the agent, over a new connection to
/// the app, and back.
const TURNS: usize = 4;

/// A probe that starts no request: it is refused immediately, before any rule, and the connection closes.
const QUESTION: &[u8] = b"\n";

/// The agent of one lane. The address is set when the agent runs.
#[derive(Debug, Default)]
pub(super) struct Pulse(OnceLock<SocketAddr>);

impl Pulse {
    pub(super) fn of(&self, agent: SocketAddr) {
        self.0.set(agent).expect("one agent");
    }

    /// Returns when the agent has processed all bytes that were sent to it.
    pub(super) async fn beat(&self) {
        let asked = async {
            let mut stream = TcpStream::connect(self.0.get().expect("the agent runs")).await?;
            stream.write_all(QUESTION).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.map(|_| answer)
        };
        let answer = timeout(PATIENCE, asked).await.expect("the worker answers in time").expect("the agent runs");
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", String::from_utf8_lossy(&answer));
    }

    /// Returns when all bytes in transit have arrived.
    pub(super) async fn settle(&self) {
        for _ in 0..TURNS {
            self.beat().await;
        }
    }
}
