//! `weir-agent leave`: says to the agent in the same pod that the pod is being deleted. For the `preStop` hook of its container,
//! which runs as soon as that is so, long before the signal to stop.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use clap::Parser;

use crate::config::duration;

/// For connecting, and for the answer beyond the time that was to be waited.
const PATIENCE: Duration = Duration::from_secs(5);

/// Says that this pod is being deleted: from now on each answer of the agent is the last on its connection, and once the app takes no
/// connections any more, the proxy port is closed.
///
/// Exit codes: 0 if the agent has heard it, 1 if not, 2 for wrong usage.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-agent leave", version, max_term_width = 110)]
pub struct Leave {
    /// The agent's control port. It must take plain HTTP over loopback, as it does with --identity-url and --control-plaintext.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8481")]
    pub control: SocketAddr,

    /// How long to wait until the app takes no connections any more: for an agent that gets its signal to stop together with the app.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub wait: Duration,
}

/// The agent has not heard it.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// Nobody answers there.
    #[error("--control {0}: {1}")]
    Unreachable(SocketAddr, io::Error),
    /// It says something else.
    #[error(
        "--control {0} answers {1:?}: it must take plain HTTP over loopback, and be of a version that knows POST /v1/leave"
    )]
    Refused(SocketAddr, String),
}

impl Leave {
    /// Says it, and waits.
    ///
    /// # Errors
    ///
    /// The agent has not heard it.
    pub fn run(&self) -> Result<(), LeaveError> {
        let said = self.say().map_err(|error| LeaveError::Unreachable(self.control, error))?;
        if said.starts_with("HTTP/1.1 204 ") {
            return Ok(());
        }
        let line = said.lines().next().unwrap_or_default();
        Err(LeaveError::Refused(self.control, line.chars().take(80).collect()))
    }

    fn say(&self) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.control, PATIENCE)?;
        stream.set_read_timeout(Some(self.wait + PATIENCE))?;
        let wait = self.wait.as_millis();
        let head = format!("POST /v1/leave?waitMillis={wait} HTTP/1.1\r\nhost: agent\r\ncontent-length: 0\r\n");
        stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}
