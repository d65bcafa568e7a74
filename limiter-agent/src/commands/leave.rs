//! `weir-agent leave`: informs the agent in the same pod that the pod is being deleted. Use it in the `preStop` hook of
//! the agent's container. The kubelet runs this hook as soon as the deletion begins, long before SIGTERM.

use std::{io, net::SocketAddr, time::Duration};

use clap::Parser;
use weir_duration::duration;

use super::{ask, status_line};

/// The timeout for connecting, and for the response after the requested wait.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Informs the agent that this pod is being deleted. From then on each response of the agent is the last one on its
/// connection. Once the app refuses connections, the agent closes the proxy port.
///
/// Exit codes: 0 if the agent acknowledged, 1 if not, 2 for wrong usage.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-agent leave", version, max_term_width = 110)]
pub struct Leave {
    /// Address of the agent's control port. It must accept plain HTTP over loopback, as it does with --identity-url
    /// and --control-plaintext.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8481")]
    pub control: SocketAddr,

    /// How long to wait for the app to refuse connections. Use it if the agent gets SIGTERM together with the app.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub wait: Duration,
}

/// The agent did not acknowledge the request.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// The agent cannot be reached.
    #[error("--control {0}: {1}")]
    Unreachable(SocketAddr, io::Error),
    /// The agent sent an unexpected response.
    #[error(
        "--control {0} answers {1:?}: it must accept plain HTTP over loopback, and its version must support POST /v1/leave"
    )]
    Refused(SocketAddr, String),
}

impl Leave {
    /// Sends the request and waits.
    ///
    /// # Errors
    ///
    /// Returns an error if the agent did not acknowledge the request.
    pub fn run(&self) -> Result<(), LeaveError> {
        let request = format!("POST /v1/leave?waitMillis={}", self.wait.as_millis());
        let answer = ask(self.control, &request, TIMEOUT, self.wait + TIMEOUT)
            .map_err(|error| LeaveError::Unreachable(self.control, error))?;
        if answer.starts_with("HTTP/1.1 204 ") {
            return Ok(());
        }
        Err(LeaveError::Refused(self.control, status_line(&answer)))
    }
}
