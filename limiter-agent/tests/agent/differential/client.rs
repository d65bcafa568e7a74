//! A client that sends a case in pieces and records all bytes that it receives.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::OwnedReadHalf},
    sync::Notify,
    time::timeout,
};

use super::{
    app::App,
    case::{Sent, pieces},
    http::{Head, Kind, Message},
    pulse::QUIET,
};

/// The time limit for the agent to close a connection after the client has closed it. The agent keeps a half-closed
/// connection for some seconds.
const LEAVE: Duration = Duration::from_secs(30);

/// The messages that a client has received.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) answers: Vec<Message>,
    /// The bytes after the last valid response, or the error in them.
    pub(super) rest: Result<Vec<u8>, String>,
    pub(super) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The agent closed the connection.
    Closed,
    /// The agent kept the connection open, and the client closed it.
    Open,
    Reset,
    /// The connection did not end after the client had closed it.
    Stuck,
}

#[derive(Default)]
struct Received {
    bytes: Mutex<(Vec<u8>, Option<End>)>,
    more: Notify,
}

/// Runs the client of one case.
pub(super) async fn play(agent: SocketAddr, sent: &[Sent], app: &App) -> Seen {
    let stream = TcpStream::connect(agent).await.expect("the agent listens");
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.into_split();
    let received = Arc::new(Received::default());
    let reader = tokio::spawn(receive(read, Arc::clone(&received)));
    let client = Client { received: &received, app, sent };
    'all: for (index, sent) in sent.iter().enumerate() {
        if sent.waits {
            client.until(|seen| seen.final_answers() >= index || seen.ended()).await;
        }
        // A client that continues to send would finally get a reset.
        if client.seen().ended() {
            break;
        }
        for (number, piece) in pieces(&sent.bytes, &sent.splits).enumerate() {
            if number > 0 {
                app.pulse.beat().await;
            }
            let mut written = 0;
            while written < piece.len() {
                let before = client.progress();
                match timeout(QUIET, write.write(&piece[written..])).await {
                    Ok(Ok(count)) => written += count,
                    Err(_) if !client.is_settled(before).await => {}
                    // The agent no longer reads.
                    Ok(Err(_)) | Err(_) => break 'all,
                }
            }
        }
    }
    client.until(Seen::ended).await;
    // The loop ends the responses that have no other end, one after the other.
    let mut before = u64::MAX;
    while !client.seen().ended() && app.progress() != before {
        app.hang_up();
        before = app.progress();
        client.until(Seen::ended).await;
    }
    let open = client.seen().end == End::Open;
    let _ = write.shutdown().await;
    let left = timeout(LEAVE, reader).await.is_ok();
    let mut seen = client.seen();
    if !left {
        seen.end = End::Stuck;
    } else if open && seen.end == End::Closed {
        seen.end = End::Open;
    }
    seen
}

async fn receive(mut stream: OwnedReadHalf, received: Arc<Received>) {
    let mut bytes = [0; 16 * 1024];
    loop {
        let read = stream.read(&mut bytes).await;
        let mut received_now = received.bytes.lock().expect("not poisoned");
        let end = match read {
            Ok(0) => Some(End::Closed),
            Ok(count) => {
                received_now.0.extend_from_slice(&bytes[..count]);
                None
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(End::Reset),
            Err(_) => Some(End::Closed),
        };
        received_now.1 = end;
        drop(received_now);
        received.more.notify_one();
        if end.is_some() {
            return;
        }
    }
}

struct Client<'a> {
    received: &'a Received,
    app: &'a App,
    sent: &'a [Sent],
}

impl Client<'_> {
    /// Waits until `enough` returns true, or until nothing more can happen without the client.
    async fn until(&self, enough: impl Fn(&Seen) -> bool) {
        while !enough(&self.seen()) {
            let before = self.progress();
            if timeout(QUIET, self.received.more.notified()).await.is_err() && self.is_settled(before).await {
                return;
            }
        }
    }

    /// Whether neither side has received anything since `before`, and nothing is in transit.
    async fn is_settled(&self, before: (usize, u64)) -> bool {
        self.app.pulse.settle().await;
        self.progress() == before
    }

    fn progress(&self) -> (usize, u64) {
        (self.received.bytes.lock().expect("not poisoned").0.len(), self.app.progress())
    }

    fn seen(&self) -> Seen {
        let (bytes, end) = self.received.bytes.lock().expect("not poisoned").clone();
        let ended = end.is_some();
        let (mut answers, mut at) = (Vec::<Message>::new(), 0);
        let rest = loop {
            let asked = answers.iter().filter(|answer| !is_informational(answer)).count();
            match Message::read(&bytes[at..], ended, |head| self.kind(head, asked)) {
                Ok(Some(message)) => {
                    at += message.used;
                    answers.push(message);
                }
                Ok(None) => break Ok(bytes[at..].to_vec()),
                Err(why) => break Err(why),
            }
        };
        Seen { answers, rest, end: end.unwrap_or(End::Open) }
    }

    /// The app's responses name the request that they answer. The agent's own responses do not.
    fn kind(&self, head: &Head, asked: usize) -> Kind {
        let answered = head.get("x-answer").first().and_then(|answer| self.app.method_answered(answer));
        let to_head = match answered {
            Some(method) => method == "HEAD",
            None => self.sent.get(asked).is_some_and(|sent| sent.bytes.trim_ascii_start().starts_with(b"HEAD ")),
        };
        Kind::Response { to_head }
    }
}

/// Whether the response is informational. hyper's path does not forward such responses.
pub(super) fn is_informational(answer: &Message) -> bool {
    answer.head.status().starts_with('1') && answer.head.status() != "101"
}

impl Seen {
    fn ended(&self) -> bool {
        self.end != End::Open
    }

    fn final_answers(&self) -> usize {
        self.answers.iter().filter(|answer| answer.whole && !is_informational(answer)).count()
    }
}
