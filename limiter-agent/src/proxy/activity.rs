//! What goes on on one client connection: enough to know when nothing does.
//!
//! An idle connection gives its buffers back (see `client`), which is right only while nobody would miss them: no
//! request is being answered, no body is half read, no byte waits to be written. Whatever is in doubt counts as busy.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

use super::{stall::Taking, traffic::Protocol, worker::Open};

/// Counters of one connection. Atomics because hyper wants a socket that could move between threads; none does.
#[derive(Debug)]
pub(super) struct Activity {
    open: Arc<Open>,
    protocol: Protocol,
    /// Requests whose response has not ended.
    requests: AtomicU64,
    /// Requests so far.
    asked: AtomicU64,
    /// Request bodies that were not read to their end. One that never is leaves this above zero for good.
    open_bodies: AtomicU64,
    /// Successful reads so far, and as it was when the last response ended.
    reads: AtomicU64,
    reads_answered: AtomicU64,
    /// Successful writes so far.
    writes: AtomicU64,
    /// The client does not take what was last given to the socket.
    blocked: AtomicBool,
    /// No other request is taken.
    over: AtomicBool,
    /// One more than `writes` was when the client closed its side, with an answer due; 0 if it did not.
    closed_after: AtomicU64,
    /// The client would do better elsewhere.
    elsewhere: Notify,
}

impl Activity {
    pub(super) fn new(open: &Arc<Open>, protocol: Protocol) -> Arc<Self> {
        let (requests, asked, open_bodies, reads, reads_answered, writes) = Default::default();
        let (blocked, over, closed_after, elsewhere) = Default::default();
        let open = Arc::clone(open);
        Arc::new(Self {
            open,
            protocol,
            requests,
            asked,
            open_bodies,
            reads,
            reads_answered,
            writes,
            blocked,
            over,
            closed_after,
            elsewhere,
        })
    }

    /// A newcomer may have the connection's place if nothing is asked on it any more. Over HTTP/2, a request's body that was not read to
    /// its end keeps nothing up.
    fn settle(&self) {
        let settled = match self.protocol {
            Protocol::Http2 => !self.owes_an_answer(),
            _ => self.is_between_requests(),
        };
        if settled {
            self.open.rest(self.open.proxy.clock.now());
        }
    }

    pub(super) fn read(&self) {
        self.reads.fetch_add(1, Relaxed);
    }

    pub(super) fn wrote(&self) {
        self.writes.fetch_add(1, Relaxed);
        self.blocked.store(false, Relaxed);
    }

    pub(super) fn could_not_write(&self) {
        self.blocked.store(true, Relaxed);
    }

    /// The client was told that there is no more: whatever it still sends is no request.
    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// The client is to be sent away.
    pub(super) fn send_away(&self) {
        self.elsewhere.notify_one();
    }

    /// Returns once it is.
    pub(super) async fn sent_away(&self) {
        self.elsewhere.notified().await;
    }

    /// No request is being answered and none has begun to come.
    pub(super) fn is_idle(&self) -> bool {
        self.is_between_requests() && self.reads.load(Relaxed) == self.reads_answered.load(Relaxed)
    }

    /// No request is being answered; the head of the next may have begun to come, and there may be a next.
    pub(super) fn is_between_requests(&self) -> bool {
        self.requests.load(Relaxed) == 0
            && self.open_bodies.load(Relaxed) == 0
            && !self.blocked.load(Relaxed)
            && !self.over.load(Relaxed)
    }

    /// Requests in progress and so far.
    pub(super) fn requests(&self) -> (u64, u64) {
        (self.requests.load(Relaxed), self.asked.load(Relaxed))
    }

    /// A request was asked whose answer is not over.
    pub(super) fn owes_an_answer(&self) -> bool {
        self.requests.load(Relaxed) > 0
    }

    /// The client sends no more, which it may do and still wait for its answer.
    pub(super) fn half_closed(&self) {
        let now = self.writes.load(Relaxed) + 1;
        let _ = self.closed_after.compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// Whether the client has closed its side and nothing was written to it since: had it left, a write would tell.
    pub(super) fn may_have_left(&self) -> bool {
        self.closed_after.load(Relaxed) == self.writes.load(Relaxed) + 1
    }

    /// How much was written, if the client does not take more.
    pub(super) fn stuck_after(&self) -> Option<u64> {
        self.blocked.load(Relaxed).then(|| self.writes.load(Relaxed))
    }
}

/// A request that is being answered, as long as it lives.
#[derive(Debug)]
pub(super) struct Answering(Arc<Activity>);

impl Answering {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        activity.requests.fetch_add(1, Relaxed);
        activity.asked.fetch_add(1, Relaxed);
        // One that is to be closed at once is closed by the task that it is served by.
        activity.open.work();
        Self(Arc::clone(activity))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Relaxed);
        self.0.reads_answered.store(self.0.reads.load(Relaxed), Relaxed);
        self.0.settle();
    }
}

/// A request body that has more to come.
#[derive(Debug)]
pub(super) struct OpenBody(Arc<Activity>);

impl OpenBody {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        activity.open_bodies.fetch_add(1, Relaxed);
        Self(Arc::clone(activity))
    }

    /// It was read to its end. Without this the connection counts as busy until it is closed.
    pub(super) fn end(self) {
        self.0.open_bodies.fetch_sub(1, Relaxed);
        self.0.settle();
    }
}

/// A response body that counts as being answered until it is dropped.
#[derive(Debug)]
pub(super) struct Answer<B> {
    body: B,
    _answering: Answering,
    /// Told what the client takes, over HTTP/2.
    taking: Option<Arc<Taking>>,
    /// What the client takes next, over HTTP/2.
    rest: Bytes,
}

/// How much of a body is given to a client of HTTP/2 at once: a client that takes so much is not stalled. The app's connection hands over
/// 400 KiB at once, which a slow client takes minutes for.
const PIECE: usize = 16 * 1024;

impl<B> Answer<B> {
    pub(super) fn new(body: B, answering: Answering) -> Self {
        Self { body, _answering: answering, taking: Taking::current(), rest: Bytes::new() }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, taking, rest, .. } = &mut *self;
        let Some(taking) = taking else { return Pin::new(body).poll_frame(cx) };
        taking.asked();
        if rest.is_empty() {
            let Some(frame) = ready!(Pin::new(body).poll_frame(cx)?) else { return Poll::Ready(None) };
            match frame.into_data() {
                Ok(data) => *rest = data,
                Err(trailers) => {
                    taking.given();
                    return Poll::Ready(Some(Ok(trailers)));
                }
            }
        }
        taking.given();
        let piece = rest.split_to(rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, body, rest) = (SizeHint::new(), self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(body.lower().saturating_add(rest));
        hint
    }
}
