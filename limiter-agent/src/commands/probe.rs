//! `weir-agent probe`: reports whether the agent in the same pod runs, or is ready.

use std::{io, net::SocketAddr, time::Duration};

use clap::Parser;

use super::{ask, status_line};

/// The timeout for connecting, and for the response.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reports whether the agent runs, or whether it is ready for requests. Use it as a probe that also works behind a
/// service mesh.
///
/// Exit codes: 0 if yes, 1 if not, with the reason on standard error, 2 for wrong usage.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-agent probe", version, max_term_width = 110)]
pub struct Probe {
    /// Address of the agent's telemetry port.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8482")]
    pub telemetry: SocketAddr,

    /// The question: whether the agent runs, or whether it is ready.
    #[arg(long, value_name = "PATH", default_value = "/healthz", value_parser = ["/healthz", "/readyz"])]
    pub path: String,
}

/// The agent does not run, or is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The agent cannot be reached.
    #[error("--telemetry {0}: {1}")]
    Unreachable(SocketAddr, io::Error),
    /// The agent gives this reason.
    #[error("{0}")]
    Negative(String),
}

impl Probe {
    /// Asks the agent.
    ///
    /// # Errors
    ///
    /// Returns an error unless the answer is yes.
    pub fn run(&self) -> Result<(), ProbeError> {
        let answer = ask(self.telemetry, &format!("GET {}", self.path), TIMEOUT, TIMEOUT)
            .map_err(|error| ProbeError::Unreachable(self.telemetry, error))?;
        if answer.starts_with("HTTP/1.1 200 ") {
            return Ok(());
        }
        let reason = answer.split_once("\r\n\r\n").map(|(_, body)| body.trim()).filter(|body| !body.is_empty());
        Err(ProbeError::Negative(reason.map_or_else(|| status_line(&answer), str::to_owned)))
    }
}
