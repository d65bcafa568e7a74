//! Short programs that the kubelet runs in the agent's container. They ask the running agent over loopback: a service
//! mesh in the pod redirects connections from outside the pod, but not these.

mod leave;
mod probe;

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

pub use self::{
    leave::{Leave, LeaveError},
    probe::{Probe, ProbeError},
};

/// Sends a request without a body, such as `GET /healthz`, and returns the response. The timeouts are for connecting,
/// and for each read of the response.
fn ask(address: SocketAddr, request: &str, connecting: Duration, reading: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, connecting)?;
    stream.set_read_timeout(Some(reading))?;
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
