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
    /// Read, and not yet taken.
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
        Ok(self.exchange(get(path, key).as_bytes())?.0)
    }

    /// The statuses of `GET <path>` with each of these keys, all sent before the first is answered.
    pub(super) fn get_all(&mut self, path: &str, keys: impl Iterator<Item = u64>) -> anyhow::Result<Vec<u16>> {
        let requests: Vec<_> = keys.map(|key| get(path, &key.to_string())).collect();
        self.stream.write_all(requests.concat().as_bytes()).context("send requests")?;
        requests.iter().map(|_| Ok(self.receive()?.0)).collect()
    }

    /// The status and the body of what was asked.
    pub(super) fn exchange(&mut self, request: &[u8]) -> anyhow::Result<(u16, String)> {
        self.stream.write_all(request).context("send a request")?;
        self.receive()
    }

    fn receive(&mut self) -> anyhow::Result<(u16, String)> {
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
        let response: Vec<u8> = self.read.drain(..end + length).collect();
        Ok((status, String::from_utf8_lossy(&response[end..]).into_owned()))
    }

    fn more(&mut self) -> anyhow::Result<()> {
        let mut buffer = [0; 16 * 1024];
        let count = self.stream.read(&mut buffer).context("read a response")?;
        ensure!(count > 0, "the connection was closed before the end of a response");
        self.read.extend_from_slice(&buffer[..count]);
        Ok(())
    }
}

fn get(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: app\r\nx-key: {key}\r\n\r\n")
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
    fn answers_to_requests_sent_together_are_told_apart() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut connection = Connection::open(server.local_addr().expect("bound")).expect("it listens");
        let (mut peer, _) = server.accept().expect("somebody came");
        let answers = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n";
        peer.write_all(answers.as_bytes()).expect("it reads");
        assert_eq!(connection.get_all("/", 7..9).expect("both were answered"), [200, 429]);
        let expected = get("/", "7") + &get("/", "8");
        let mut asked = vec![0; expected.len()];
        peer.read_exact(&mut asked).expect("it asked");
        assert_eq!(String::from_utf8_lossy(&asked), expected);
    }

    #[test]
    fn heads_are_understood() {
        assert_eq!(parse_head("http/1.1 429 too many\r\ncontent-length: 12\r\n\r\n"), Some((429, 12)));
        assert_eq!(parse_head("http/1.1 200 ok\r\n\r\n"), None);
    }
}
