//! Short programs that the kubelet runs in the agent's container. They ask the running agent over loopback: a service
//! mesh in the pod redirects connections from outside the pod, but not these.
//!
//! `weir-agent leave` informs the agent that the pod is being deleted. It is for the `preStop` hook of the agent's
//! container, which the kubelet runs as soon as the deletion begins, long before SIGTERM. `weir-agent probe` reports
//! whether the agent runs, or is ready.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use clap::Parser;
use weir_duration::duration;

/// The timeout of `leave` for connecting, and for the response after the requested wait.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of `probe` for connecting, and for the response.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

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

/// The agent did not acknowledge the request, does not run, or is not ready.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The agent cannot be reached.
    #[error("{flag} {address}: {error}")]
    Unreachable {
        /// The flag with the address.
        flag: &'static str,
        /// The address of the agent.
        address: SocketAddr,
        /// The error of the connection.
        error: io::Error,
    },
    /// The agent sent an unexpected response.
    #[error(
        "--control {0} answers {1:?}: it must accept plain HTTP over loopback, and its version must support POST /v1/leave"
    )]
    Refused(SocketAddr, String),
    /// The agent gives this reason.
    #[error("{0}")]
    Negative(String),
}

impl Leave {
    /// Sends the request and waits.
    ///
    /// # Errors
    ///
    /// Returns an error if the agent did not acknowledge the request.
    pub fn run(&self) -> Result<(), CommandError> {
        let request = format!("POST /v1/leave?waitMillis={}", self.wait.as_millis());
        let answer =
            ask(self.control, &request, LEAVE_TIMEOUT, self.wait).map_err(unreachable("--control", self.control))?;
        if answer.starts_with("HTTP/1.1 204 ") {
            return Ok(());
        }
        Err(CommandError::Refused(self.control, status_line(&answer)))
    }
}

impl Probe {
    /// Asks the agent.
    ///
    /// # Errors
    ///
    /// Returns an error unless the answer is yes.
    pub fn run(&self) -> Result<(), CommandError> {
        let request = format!("GET {}", self.path);
        let answer = ask(self.telemetry, &request, PROBE_TIMEOUT, Duration::ZERO)
            .map_err(unreachable("--telemetry", self.telemetry))?;
        if answer.starts_with("HTTP/1.1 200 ") {
            return Ok(());
        }
        let reason = answer.split_once("\r\n\r\n").map(|(_, body)| body.trim()).filter(|body| !body.is_empty());
        Err(CommandError::Negative(reason.map_or_else(|| status_line(&answer), str::to_owned)))
    }
}

fn unreachable(flag: &'static str, address: SocketAddr) -> impl FnOnce(io::Error) -> CommandError {
    move |error| CommandError::Unreachable { flag, address, error }
}

/// Sends a request without a body, such as `GET /healthz`, and returns the response. `timeout` is for connecting. For each
/// read of the response, `wait` is added.
fn ask(address: SocketAddr, request: &str, timeout: Duration, wait: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout + wait))?;
    let head = format!("{request} HTTP/1.1\r\nhost: agent\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    let timed_out = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
        _ => error,
    };
    stream.read_to_end(&mut answer).map_err(timed_out)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Returns the beginning of the status line, for messages.
fn status_line(answer: &str) -> String {
    answer.lines().next().unwrap_or_default().chars().take(80).collect()
}
