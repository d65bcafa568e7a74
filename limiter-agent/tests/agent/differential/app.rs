//! An app with a script: it records each request and answers with the next response of the script.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, watch},
};

use super::{
    case::{Answer, Then, When, pieces},
    http::{Kind, Message},
    pulse::Pulse,
};
use crate::support::{PATIENCE, accept};

/// The last request on most connections; it always gets the same response.
pub(super) const LAST: &str = "/last";
const LAST_ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-last: 1\r\n\r\nok";

/// A request as the app parsed it.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) message: Result<Message, String>,
    /// Whether the app answers the request before its body is complete.
    pub(super) early: bool,
    /// The index of the response in the script.
    pub(super) answer: Option<usize>,
    /// Whether the request arrived on a connection on which the app had sent extra bytes.
    pub(super) behind_extra: bool,
}

/// The app of one agent.
#[derive(Clone)]
pub(super) struct App {
    pub(super) address: SocketAddr,
    pub(super) pulse: Arc<Pulse>,
    stage: Arc<Stage>,
}

struct Stage {
    play: Mutex<Play>,
    moved: Notify,
    /// The run whose connections must close.
    over: watch::Sender<u64>,
}

#[derive(Default)]
struct Play {
    /// Counts the runs, so that a late message does not count in the next run.
    run: u64,
    script: VecDeque<(usize, Answer)>,
    heard: Vec<Heard>,
    /// The open connections, and how many of them are inside a message.
    open: usize,
    busy: usize,
    /// Grows with every event.
    progress: u64,
}

impl App {
    pub(super) async fn start() -> Self {
        let stage = Arc::new(Stage { play: Mutex::default(), moved: Notify::new(), over: watch::Sender::new(0) });
        let pulse = Arc::default();
        let own = (Arc::clone(&stage), Arc::clone(&pulse));
        let address = accept(move |stream| {
            let _ = stream.set_nodelay(true);
            let (stage, pulse) = own.clone();
            stage.moved(|play| play.open += 1);
            let over = stage.over.subscribe();
            async move {
                let (stage, pulse) = (&*stage, &*pulse);
                Connection { stream, stage, pulse, bytes: Vec::new(), said_more: false, over }.serve().await;
                stage.moved(|play| play.open -= 1);
            }
        });
        Self { address: address.await, pulse, stage }
    }

    pub(super) fn begin(&self, script: &[Answer]) {
        let mut play = self.stage.play();
        play.run += 1;
        play.script = script.iter().cloned().enumerate().collect();
        play.heard.clear();
    }

    /// Returns the requests, and the number of connections that ended inside a message.
    ///
    /// Whether a connection is reused must depend only on one case. So this function waits until all connections are
    /// closed and the agent has detected this.
    pub(super) async fn end(&self, patience: Duration) -> (Vec<Heard>, usize) {
        let _ = tokio::time::timeout(patience, self.until(|play| play.busy == 0)).await;
        self.pulse.settle().await;
        let left = self.stage.play().busy;
        let heard = std::mem::take(&mut self.stage.play().heard);
        self.hang_up();
        tokio::time::timeout(PATIENCE, self.until(|play| play.open == 0)).await.expect("all connections end");
        self.pulse.settle().await;
        (heard, left)
    }

    async fn until(&self, so: impl Fn(&Play) -> bool) {
        loop {
            let moved = self.stage.moved.notified();
            if so(&self.stage.play()) {
                return;
            }
            moved.await;
        }
    }

    /// Closes all connections, including those whose response has no other end.
    pub(super) fn hang_up(&self) {
        self.stage.over.send_modify(|over| *over += 1);
    }

    pub(super) fn progress(&self) -> u64 {
        self.stage.play().progress
    }

    /// The method of the request that got this response.
    pub(super) fn method_answered(&self, answer: &str) -> Option<String> {
        let play = self.stage.play();
        let heard = play.heard.iter().find(|heard| heard.answer.is_some_and(|index| index.to_string() == answer))?;
        Some(heard.message.as_ref().ok()?.head.method().to_owned())
    }
}

impl Stage {
    fn play(&self) -> MutexGuard<'_, Play> {
        self.play.lock().expect("not poisoned")
    }

    fn moved<T>(&self, change: impl FnOnce(&mut Play) -> T) -> T {
        let mut play = self.play();
        play.progress += 1;
        let value = change(&mut play);
        drop(play);
        self.moved.notify_waiters();
        value
    }
}

struct Connection<'a> {
    stream: TcpStream,
    stage: &'a Stage,
    pulse: &'a Pulse,
    /// Bytes that are not part of a message yet.
    bytes: Vec<u8>,
    /// The app sent extra bytes together with a response on this connection.
    said_more: bool,
    over: watch::Receiver<u64>,
}

impl Connection<'_> {
    async fn serve(mut self) {
        loop {
            if self.bytes.is_empty() && !self.read().await {
                return;
            }
            self.stage.moved(|play| play.busy += 1);
            let goes_on = self.exchange().await;
            self.stage.moved(|play| play.busy -= 1);
            if !goes_on {
                return;
            }
        }
    }

    async fn read(&mut self) -> bool {
        let mut bytes = [0; 16 * 1024];
        let read = tokio::select! {
            read = self.stream.read(&mut bytes) => read,
            _ = self.over.changed() => return false,
        };
        match read {
            Ok(count @ 1..) => {
                self.bytes.extend_from_slice(&bytes[..count]);
                self.stage.moved(|_| ());
                true
            }
            _ => false,
        }
    }

    /// Reads a request until `enough` accepts it. The flag is false if no more bytes arrive.
    async fn request(&mut self, enough: impl Fn(&Message) -> bool) -> (Option<Result<Message, String>>, bool) {
        loop {
            let message = Message::read(&self.bytes, false, |_| Kind::Request).transpose();
            match &message {
                Some(Ok(message)) if !enough(message) => {}
                Some(_) => return (message, true),
                None => {}
            }
            if !self.read().await {
                // An app would not act on an incomplete head.
                return (message, false);
            }
        }
    }

    /// Serves one request. Returns whether the connection stays open.
    async fn exchange(&mut self) -> bool {
        let run = self.stage.play().run;
        let (Some(message), _) = self.request(|_| true).await else { return false };
        let last = message.as_ref().is_ok_and(|message| message.head.target() == LAST);
        let behind_extra = self.said_more;
        let (index, answer) = self.stage.moved(|play| {
            let answer = if last { None } else { play.script.pop_front() };
            let (index, answer) = answer.unzip();
            let early = answer.as_ref().is_some_and(|answer| answer.when == When::Head);
            if play.run == run {
                play.heard.push(Heard { message: message.clone(), early, answer: index, behind_extra });
            }
            (play.heard.len().wrapping_sub(1), answer)
        });
        let Ok(message) = message else { return false };
        let early = answer.as_ref().is_some_and(|answer| answer.when == When::Head);
        let to_head = message.head.method() == "HEAD";
        let mut used = message.used;
        if !early {
            let (read, whole) = self.request(|message| message.whole).await;
            let Some(read) = read else { return false };
            used = read.as_ref().map_or(0, |message| message.used);
            let sound = whole && read.is_ok();
            self.stage.moved(|play| {
                if play.run == run
                    && let Some(heard) = play.heard.get_mut(index)
                {
                    heard.message = read;
                }
            });
            if !sound {
                return false;
            }
        }
        let (bytes, splits, then) = match &answer {
            Some(answer) => (answer.bytes(to_head), answer.splits.as_slice(), answer.then(to_head)),
            None if to_head => (LAST_ANSWER[..LAST_ANSWER.len() - 2].to_vec(), [].as_slice(), Then::Keep),
            None => (LAST_ANSWER.to_vec(), [].as_slice(), Then::Keep),
        };
        // The agent can read a larger response in several pieces, so its extra bytes can arrive later.
        self.said_more |= answer.as_ref().is_some_and(|answer| !answer.extra.is_empty()) && bytes.len() < 4096;
        self.said_more &= splits.is_empty();
        if then == Then::Close {
            // The socket sends the end together with the last bytes. Otherwise it would depend on timing whether the
            // agent sends another request on this connection.
            let _ = socket2::SockRef::from(&self.stream).set_tcp_cork(true);
        }
        for (number, piece) in pieces(&bytes, splits).enumerate() {
            if number > 0 {
                // The app waits, so that the agent reads the pieces one by one.
                self.pulse.beat().await;
            }
            let written = tokio::select! {
                biased;
                written = self.stream.write_all(piece) => written.is_ok(),
                _ = self.over.changed() => false,
            };
            if !written {
                return false;
            }
            self.stage.moved(|_| ());
        }
        match then {
            Then::Keep if early => {
                let (read, whole) = self.request(|message| message.whole).await;
                let Some(Ok(read)) = read else { return false };
                self.bytes.drain(..read.used);
                whole
            }
            Then::Keep => {
                self.bytes.drain(..used);
                true
            }
            Then::Close => {
                let _ = self.stream.shutdown().await;
                // The app waits until the agent has read the end. Otherwise the kernel could answer later bytes of the
                // agent with a reset.
                let pulse = self.pulse;
                tokio::select! {
                    () = async { while self.read().await {} } => {}
                    () = pulse.beat() => {}
                }
                false
            }
            Then::Reset => {
                let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
                false
            }
        }
    }
}
