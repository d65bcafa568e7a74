//! How to know that an agent has done all that it is going to do, however busy the machine is.
//!
//! Pauses would tell nothing: a process that gets no core for a while looks like one that is through. An agent with one
//! worker sees what came to its sockets in the order in which it came, so once it has answered a question, it has seen all
//! that was sent to it before, and has done what it does at once.

use std::{net::SocketAddr, sync::OnceLock, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::support::PATIENCE;

/// If nothing at all happens for so long, nothing will that an agent waits with: above all the moment after which a
/// request in pieces goes the ordinary way.
pub(super) const QUIET: Duration = Duration::from_millis(150);

/// How many turns it takes at most from something that one side has sent to what the other side sees of it: to the agent,
/// over a new connection to the app, and back.
const TURNS: usize = 4;

/// Begins no request: it is refused at once, before any rule is asked, and the connection closed.
const QUESTION: &[u8] = b"\n";

/// The agent of one lane; told once it runs.
#[derive(Debug, Default)]
pub(super) struct Pulse(OnceLock<SocketAddr>);

impl Pulse {
    pub(super) fn of(&self, agent: SocketAddr) {
        self.0.set(agent).expect("one agent");
    }

    /// Ends once the agent has seen all that was sent to it.
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

    /// Ends once all that was under way has arrived.
    pub(super) async fn settle(&self) {
        for _ in 0..TURNS {
            self.beat().await;
        }
    }
}
