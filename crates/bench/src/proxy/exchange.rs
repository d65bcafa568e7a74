//! Sends requests on a connection that stays open. This is used to check a proxy before the load, to fill tables of
//! keys, and to keep idle connections. It is not used for measurements.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, ensure};

/// This is long enough even if the app first answers the requests of a thousand other connections.
const PATIENCE: Duration = Duration::from_secs(30);
const LARGEST_HEAD: usize = 16 * 1024;
const MOST_FIELDS: usize = 64;

pub(crate) struct Connection {
    stream: TcpStream,
    /// The bytes that are read, but not yet parsed.
    read: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE)).context("set a timeout")?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        Ok(Self { stream, read: Vec::new() })
    }

    /// Sends `GET <path>` with this key. Returns the status.
    pub(super) fn get(&mut self, path: &str, key: &str) -> anyhow::Result<u16> {
        Ok(self.exchange(get(path, key).as_bytes())?.0)
    }

    /// Sends `GET <path>` with each of these keys, before it reads the first response. Returns the statuses.
    pub(super) fn get_all(&mut self, path: &str, keys: impl Iterator<Item = u64>) -> anyhow::Result<Vec<u16>> {
        self.ask_all(&keys.map(|key| get(path, &key.to_string())).collect::<Vec<_>>())
    }

    /// The statuses of these requests, all sent before the first answer is read.
    pub(crate) fn ask_all(&mut self, requests: &[String]) -> anyhow::Result<Vec<u16>> {
        self.stream.write_all(requests.concat().as_bytes()).context("send requests")?;
        requests.iter().map(|_| Ok(self.receive()?.0)).collect()
    }

    /// Sends a request. Returns the status and the body of the response.
    pub(crate) fn exchange(&mut self, request: &[u8]) -> anyhow::Result<(u16, String)> {
        self.stream.write_all(request).context("send a request")?;
        self.receive()
    }

    fn receive(&mut self) -> anyhow::Result<(u16, String)> {
        let head = loop {
            if let Some(head) = parse_head(&self.read)? {
                break head;
            }
            ensure!(self.read.len() < LARGEST_HEAD, "the head of a response does not end");
            self.more()?;
        };
        let length = head.length + head.body;
        while self.read.len() < length {
            self.more()?;
        }
        let response: Vec<u8> = self.read.drain(..length).collect();
        Ok((head.status, String::from_utf8_lossy(&response[head.length..]).into_owned()))
    }

    fn more(&mut self) -> anyhow::Result<()> {
        let mut buffer = [0; 16 * 1024];
        let count = self.stream.read(&mut buffer).context("read a response")?;
        ensure!(count > 0, "the connection was closed before the end of a response");
        self.read.extend_from_slice(&buffer[..count]);
        Ok(())
    }
}

pub(super) fn get(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: app\r\nx-key: {key}\r\n\r\n")
}

/// The head of a response.
#[derive(Debug, PartialEq)]
pub(super) struct Head {
    pub(super) status: u16,
    /// The length of the head.
    pub(super) length: usize,
    /// The length of the body.
    pub(super) body: usize,
}

/// Parses the head at the beginning of these bytes. None if it is incomplete.
pub(super) fn parse_head(bytes: &[u8]) -> anyhow::Result<Option<Head>> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(bytes);
    let parsed = parsed.with_context(|| format!("not understood: {}", String::from_utf8_lossy(bytes)))?;
    let httparse::Status::Complete(length) = parsed else { return Ok(None) };
    let body = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let body = body.and_then(|field| str::from_utf8(field.value).ok()?.trim().parse().ok());
    let (status, body) = response.code.zip(body).context("a head without a status or a length")?;
    Ok(Some(Head { status, length, body }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_pipelined_requests_are_separated() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut connection = Connection::open(server.local_addr().expect("bound")).expect("a connection");
        let (mut peer, _) = server.accept().expect("a connection");
        let answers = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n";
        peer.write_all(answers.as_bytes()).expect("sent");
        assert_eq!(connection.get_all("/", 7..9).expect("two responses"), [200, 429]);
        let expected = get("/", "7") + &get("/", "8");
        let mut asked = vec![0; expected.len()];
        peer.read_exact(&mut asked).expect("two requests");
        assert_eq!(String::from_utf8_lossy(&asked), expected);
    }

    #[test]
    fn heads_are_understood() {
        let parse = |head: &str| parse_head(head.as_bytes());
        let head = "HTTP/1.1 429 Too Many\r\nX: y\r\nContent-Length: 12\r\n\r\n";
        let expected = Head { status: 429, length: head.len(), body: 12 };
        assert_eq!(parse(&format!("{head}\r\n\r\n")).expect("well formed"), Some(expected));
        for end in 0..head.len() {
            assert_eq!(parse(&head[..end]).expect("an incomplete head"), None, "{end}");
        }
        assert!(parse("HTTP/1.1 200 OK\r\n\r\n").is_err(), "a head without the length of the body");
        assert!(parse("HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n").is_err());
        assert!(parse("SSH-2.0-x\r\n").is_err());
    }
}
