//! The load: a fixed list of requests over keep-alive connections. Each connection sends its next request as soon as it
//! has an answer. All contenders get the same list. It records when each request was sent, and when its answer was
//! complete.

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event},
    },
};

use super::plan::KEY;
use crate::{
    clock,
    proxy::{LARGEST_ANSWER, PolledConnection},
};

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(15);

pub(super) struct Clients {
    epoll: OwnedFd,
    connections: Vec<Connection>,
}

struct Connection {
    polled: PolledConnection,
    /// The request that is not answered yet.
    open: Option<(usize, Instant)>,
}

/// An answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Its place in the list of requests.
    pub(super) request: usize,
    pub(super) sent: Instant,
    pub(super) received: Instant,
    pub(super) status: u16,
}

impl Answer {
    pub(super) fn is_served(&self) -> bool {
        self.status == 200
    }

    pub(super) fn latency(&self) -> Duration {
        self.received.duration_since(self.sent)
    }
}

/// A request as it is sent.
pub(super) fn get(path: &str, key: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: app\r\n{KEY}: {key}\r\n\r\n").into_bytes()
}

impl Clients {
    /// Opens this many connections in all, to each address in turn.
    pub(super) fn connect(addresses: &[SocketAddr], connections: usize) -> anyhow::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).context("make an epoll")?;
        let mut all = Vec::new();
        for (number, address) in (0..connections).zip(addresses.iter().cycle()) {
            all.push(Connection { polled: PolledConnection::open(*address, &epoll, number as u64)?, open: None });
        }
        Ok(Self { epoll, connections: all })
    }

    /// Sends all requests, and returns when all are answered with 200 or 429; anything else is an error.
    pub(super) fn run(&mut self, requests: &[Vec<u8>]) -> anyhow::Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(requests.len());
        let mut next = 0;
        for connection in self.connections.iter_mut().take(requests.len()) {
            connection.ask(next, &requests[next])?;
            next += 1;
        }
        let mut events: Vec<Event> = Vec::with_capacity(self.connections.len());
        let mut room = [0; LARGEST_ANSWER];
        let wait = Timespec::try_from(PATIENCE).context("wait for answers")?;
        while answers.len() < requests.len() {
            epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)).context("wait for answers")?;
            ensure!(!events.is_empty(), "{} requests were not answered", requests.len() - answers.len());
            for event in events.drain(..) {
                let number = usize::try_from(event.data.u64()).context("a connection")?;
                let connection = self.connections.get_mut(number).context("a connection")?;
                let Some(answer) = connection.hear(&mut room)? else { continue };
                ensure!(matches!(answer.status, 200 | 429), "a request got {}", answer.status);
                answers.push(answer);
                if let Some(request) = requests.get(next) {
                    connection.ask(next, request)?;
                    next += 1;
                }
            }
        }
        Ok(answers)
    }
}

impl Connection {
    fn ask(&mut self, place: usize, request: &[u8]) -> anyhow::Result<()> {
        self.open = Some((place, clock::now()));
        self.polled.ask(request)
    }

    /// Reads what was received. Returns a complete answer.
    fn hear(&mut self, room: &mut [u8]) -> anyhow::Result<Option<Answer>> {
        let Some((status, _)) = self.polled.read_response(room)? else { return Ok(None) };
        let (request, sent) = self.open.take().context("an answer without a request")?;
        Ok(Some(Answer { request, sent, received: clock::now(), status }))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// Serves the first requests of each path and refuses the others. Returns the paths in the order of requests.
    fn serve(listener: &TcpListener, connections: usize, body: &str) -> Vec<String> {
        let paths = std::sync::Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..connections {
                let (mut stream, _) = listener.accept().expect("a client connects");
                let paths = &paths;
                scope.spawn(move || {
                    let mut room = [0; 1024];
                    while let Ok(count @ 1..) = stream.read(&mut room) {
                        let text = String::from_utf8_lossy(&room[..count]).into_owned();
                        let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
                        let status = if path == "/no" { "429 Too Many Requests" } else { "200 OK" };
                        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                        paths.lock().expect("no panic").push(path);
                        stream.write_all(head.as_bytes()).expect("it reads");
                        stream.write_all(body.as_bytes()).expect("it reads");
                    }
                });
            }
        });
        paths.into_inner().expect("no panic")
    }

    #[test]
    fn each_request_is_sent_once_and_has_its_own_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = thread::spawn(move || serve(&listener, 3, "body"));
        let requests: Vec<_> = (0..20).map(|n| get(if n % 4 == 0 { "/no" } else { "/yes" }, "k")).collect();
        let mut clients = Clients::connect(&[address], 3).expect("it listens");
        let mut answers = clients.run(&requests).expect("it answers");
        drop(clients);
        assert_eq!(server.join().expect("no panic").len(), requests.len());
        answers.sort_by_key(|answer| answer.request);
        assert_eq!(answers.iter().map(|answer| answer.request).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        for answer in answers {
            assert_eq!(answer.is_served(), answer.request % 4 != 0, "{answer:?}");
            assert!(answer.sent <= answer.received);
        }
    }

    #[test]
    fn a_closed_connection_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = thread::spawn(move || drop(listener.accept().expect("a client connects")));
        let mut clients = Clients::connect(&[address], 1).expect("it listens");
        server.join().expect("no panic");
        assert!(clients.run(&[get("/", "k")]).is_err());
    }
}
