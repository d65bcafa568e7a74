//! An HTTP/1.1 client with minimal work for each request, so that a client on one core can keep a proxy's core busy.
//!
//! wrk on one core is too slow for that. A proxy that is faster than its clients sleeps between requests, and the
//! wake-ups cost CPU that a proxy under full load does not need. Each connection of this client sends the same request
//! when the last one was answered, and reads only the status and the end of a response.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    num::NonZeroU32,
    os::fd::OwnedFd,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
};

use super::{
    exchange::{get, parse_head},
    load::Load,
};
use crate::clock;

/// The longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest response, and the size of the buffer for reading.
pub(crate) const LARGEST_ANSWER: usize = 16 * 1024;

/// The settings of the client: the request, and the number of connections that send it.
pub(super) struct Lean<'a> {
    pub(super) address: SocketAddr,
    pub(super) path: &'a str,
    pub(super) key: &'a str,
    pub(super) connections: usize,
    pub(super) length: Duration,
    /// The rate of all connections together, evenly spaced. None means that a connection sends the next request as soon
    /// as the response has arrived.
    pub(super) per_second: Option<NonZeroU32>,
}

/// A connection with one request at a time. One thread waits for the responses of many such connections.
pub(crate) struct PolledConnection {
    stream: TcpStream,
    answer: Answer,
}

/// The received part of an incomplete response.
#[derive(Default)]
struct Answer(Vec<u8>);

impl Lean<'_> {
    /// Runs the client. At the end, every sent request was answered, or counts as failed. Latencies are not measured.
    pub(super) fn run(&self) -> anyhow::Result<Load> {
        let request = get(self.path, self.key).into_bytes();
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("create an epoll instance")?;
        let mut connections = Vec::new();
        for number in 0..self.connections {
            connections.push(PolledConnection::open(self.address, &epoll, number as u64)?);
        }
        let mut load = Load { served: 0, refused: 0, failed: 0, seconds: 0.0, bytes: 0, p50: 0.0, p95: 0.0, p99: 0.0 };
        let started = clock::now();
        let gap = self.per_second.map(|per_second| Duration::from_secs(1) / per_second.get());
        let mut due = started;
        let mut idle: VecDeque<usize> = (0..connections.len()).collect();
        let mut events: Vec<Event> = Vec::with_capacity(connections.len());
        let mut room = [0; LARGEST_ANSWER];
        loop {
            let now = clock::now();
            while now < started + self.length
                && now >= due
                && let Some(number) = idle.pop_front()
            {
                connections[number].ask(&request)?;
                due += gap.unwrap_or_default();
            }
            let is_over = now >= started + self.length;
            if is_over && idle.len() == connections.len() {
                break;
            }
            if now > started + self.length + PATIENCE {
                load.failed = (connections.len() - idle.len()) as u64;
                break;
            }
            // The client polls without sleeping until the next request is scheduled, because it has a separate core.
            let wait = if gap.is_some() { Duration::ZERO } else { PATIENCE };
            let wait = Timespec::try_from(wait).context("wait for answers")?;
            epoll::wait(&epoll, spare_capacity(&mut events), Some(&wait)).context("wait for answers")?;
            for event in events.drain(..) {
                let number = usize::try_from(event.data.u64()).context("a connection")?;
                let connection = connections.get_mut(number).context("a connection")?;
                let Some((status, bytes)) = connection.read_response(&mut room)? else { continue };
                load.bytes += bytes as u64;
                *if status < 400 { &mut load.served } else { &mut load.refused } += 1;
                if gap.is_none() && now < started + self.length {
                    connection.ask(&request)?;
                } else {
                    idle.push_back(number);
                }
            }
        }
        load.seconds = clock::since(started).as_secs_f64();
        Ok(load)
    }
}

impl PolledConnection {
    /// Connects. Responses are events of `epoll` with this number.
    pub(crate) fn open(address: SocketAddr, epoll: &OwnedFd, number: u64) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        stream.set_nonblocking(true).context("make a socket non-blocking")?;
        epoll::add(epoll, &stream, EventData::new_u64(number), EventFlags::IN | EventFlags::ET)
            .context("wait for answers")?;
        Ok(Self { stream, answer: Answer::default() })
    }

    pub(crate) fn ask(&mut self, request: &[u8]) -> anyhow::Result<()> {
        // The send buffer of a socket without a request in flight has room for one request.
        let sent = self.stream.write(request).context("send a request")?;
        ensure!(sent == request.len(), "only {sent} bytes of a request were sent");
        Ok(())
    }

    /// Reads the received bytes. Returns the status and the length of a complete response.
    pub(crate) fn read_response(&mut self, room: &mut [u8]) -> anyhow::Result<Option<(u16, usize)>> {
        loop {
            let count = match self.stream.read(room) {
                Ok(0) => bail!("a connection was closed"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).context("read a response"),
            };
            if let Some(whole) = self.answer.take(&room[..count])? {
                return Ok(Some(whole));
            }
        }
    }
}

impl Answer {
    /// Adds received bytes. Returns the status and the length of the response if it is complete.
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<Option<(u16, usize)>> {
        let Self(before) = self;
        // Nearly all responses arrive in one piece, which is not copied.
        let all = if before.is_empty() {
            bytes
        } else {
            before.extend_from_slice(bytes);
            &*before
        };
        ensure!(all.len() <= LARGEST_ANSWER, "a response of more than {LARGEST_ANSWER} bytes");
        let whole = match parse_head(all)? {
            Some(head) => {
                let length = head.length + head.body;
                ensure!(all.len() <= length, "{} bytes after a response", all.len() - length);
                (all.len() == length).then_some((head.status, length))
            }
            None => None,
        };
        if whole.is_some() {
            before.clear();
        } else if before.is_empty() {
            before.extend_from_slice(bytes);
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    const REFUSED: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nServer: x\r\nContent-Length: 4\r\n\r\n\r\n\r\n";

    #[test]
    fn an_answer_is_counted_once_however_it_comes() {
        let mut answer = Answer::default();
        for first in 0..=REFUSED.len() {
            for second in first..=REFUSED.len() {
                let mut heard = Vec::new();
                for piece in [&REFUSED[..first], &REFUSED[first..second], &REFUSED[second..]] {
                    if !piece.is_empty() {
                        heard.extend(answer.take(piece).expect("well formed"));
                    }
                }
                assert_eq!(heard, [(429, REFUSED.len())], "{first} {second}");
            }
        }
    }

    #[test]
    fn what_was_not_asked_for_is_an_error() {
        assert!(Answer::default().take(&[REFUSED, REFUSED].concat()).is_err());
        assert!(Answer::default().take(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "a response of unknown length");
        assert!(Answer::default().take(b"SSH-2.0\r\n\r\n").is_err());
        assert!(Answer::default().take(&[b'x'; LARGEST_ANSWER + 1]).is_err());
    }

    /// Answers every request in two pieces. Returns the number of requests.
    fn serve(listener: &TcpListener, connections: usize) -> u64 {
        thread::scope(|scope| {
            let served: Vec<_> = (0..connections)
                .map(|number| {
                    let (mut stream, _) = listener.accept().expect("a connection");
                    stream.set_nodelay(true).expect("a socket");
                    scope.spawn(move || {
                        let request = get("/a", "k");
                        let mut asked = vec![0; request.len()];
                        let mut count = 0;
                        while stream.read_exact(&mut asked).is_ok() {
                            assert_eq!(asked, request.as_bytes());
                            let (head, rest) = REFUSED.split_at(number * 10);
                            stream.write_all(head).expect("sent");
                            stream.write_all(rest).expect("sent");
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            served.into_iter().map(|served| served.join().expect("no panic")).sum()
        })
    }

    #[test]
    fn it_counts_what_it_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let connections = 5;
        let server = thread::spawn(move || serve(&listener, connections));
        let lean =
            Lean { address, path: "/a", key: "k", connections, length: Duration::from_millis(100), per_second: None };
        let load = lean.run().expect("a result");
        let served = server.join().expect("no panic");
        assert!(served > connections as u64, "{served}");
        assert_eq!((load.refused, load.served, load.failed), (served, 0, 0));
        assert_eq!(load.bytes, served * REFUSED.len() as u64);
        assert!(load.seconds >= 0.1);
    }

    #[test]
    fn it_asks_no_oftener_than_it_should() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = thread::spawn(move || serve(&listener, 5));
        let (length, per_second) = (Duration::from_millis(200), NonZeroU32::new(500));
        let load = Lean { address, path: "/a", key: "k", connections: 5, length, per_second }.run().expect("a result");
        assert_eq!(load.refused, server.join().expect("no panic"));
        assert!((50..=100).contains(&load.refused), "{} of 100", load.refused);
    }

    #[test]
    fn a_closed_connection_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = thread::spawn(move || drop(listener.accept().expect("a connection")));
        let lean =
            Lean { address, path: "/a", key: "k", connections: 1, length: Duration::from_secs(1), per_second: None };
        assert!(lean.run().is_err());
        server.join().expect("no panic");
    }
}
