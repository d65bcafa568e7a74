//! One request and its answer on a connection that stays open: to look before a load is sent, to fill tables of keys,
//! and to leave connections idle. Nothing is measured through it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, ensure};

const PATIENCE: Duration = Duration::from_secs(5);
const LARGEST_HEAD: usize = 16 * 1024;

pub(super) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    pub(super) fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE)).context("set a timeout")?;
        stream.set_nodelay(true).context("send at once")?;
        Ok(Self { stream, read: Vec::new() })
    }

    /// The status of `GET <path>` with this key.
    pub(super) fn get(&mut self, path: &str, key: &str) -> anyhow::Result<u16> {
        let head = format!("GET {path} HTTP/1.1\r\nhost: app\r\nx-key: {key}\r\n\r\n");
        Ok(self.exchange(head.as_bytes())?.0)
    }

    /// The status and the body of what was asked.
    pub(super) fn exchange(&mut self, request: &[u8]) -> anyhow::Result<(u16, String)> {
        self.stream.write_all(request).context("send a request")?;
        self.read.clear();
        let end = loop {
            if let Some(end) = self.read.windows(4).position(|at| at == b"\r\n\r\n") {
                break end + 4;
            }
            ensure!(self.read.len() < LARGEST_HEAD, "the head of a response does not end");
            self.more()?;
        };
        let head = String::from_utf8_lossy(&self.read[..end]).to_ascii_lowercase();
        let (status, length) = parse_head(&head).with_context(|| format!("not understood: {head}"))?;
        while self.read.len() < end + length {
            self.more()?;
        }
        Ok((status, String::from_utf8_lossy(&self.read[end..]).into_owned()))
    }

    fn more(&mut self) -> anyhow::Result<()> {
        let mut buffer = [0; 16 * 1024];
        let count = self.stream.read(&mut buffer).context("read a response")?;
        ensure!(count > 0, "the connection was closed before the end of a response");
        self.read.extend_from_slice(&buffer[..count]);
        Ok(())
    }
}

/// Status and length of the body, from a head in lower case.
fn parse_head(head: &str) -> Option<(u16, usize)> {
    let status = head.strip_prefix("http/1.1 ")?.get(..3)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"))?;
    Some((status, length.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_understood() {
        assert_eq!(parse_head("http/1.1 429 too many\r\ncontent-length: 12\r\n\r\n"), Some((429, 12)));
        assert_eq!(parse_head("http/1.1 200 ok\r\n\r\n"), None);
    }
}
