//! Tracks the activity of one client connection, to detect when it is idle.
//!
//! An idle connection releases its buffers (see `serve`). That is safe only if no request is in progress, no body is
//! half read, and no byte waits to be written. When in doubt, the connection counts as busy.

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
use weir_enforce::InQueue;

use crate::proxy::{open_connection::OpenConnection, read_progress::ReadProgress, traffic::Protocol};

/// Counters of one connection. They are atomics because hyper requires a socket that is `Send`; no connection changes
/// threads.
#[derive(Debug)]
pub(super) struct Activity {
    pub(super) open: Arc<OpenConnection>,
    pub(super) protocol: Protocol,
    /// Requests whose response has not ended.
    requests: AtomicU64,
    /// Requests so far.
    asked: AtomicU64,
    /// Request bodies that were not read to their end. A body that is never read keeps this counter above zero.
    open_bodies: AtomicU64,
    /// Successful reads so far, and the number of reads when the last response ended.
    reads: AtomicU64,
    reads_answered: AtomicU64,
    /// Successful writes so far.
    writes: AtomicU64,
    /// The socket did not accept the last write, because the client does not read.
    blocked: AtomicBool,
    /// An HTTP/2 connection is busy because of `blocked`.
    unsent: AtomicBool,
    /// The connection accepts no more requests.
    over: AtomicBool,
    /// The connection is a tunnel: it carries bytes of another protocol.
    tunnel: AtomicBool,
    /// `writes` plus one, from the time when the client closed its side during a request; 0 if it has not done so.
    closed_after: AtomicU64,
    /// Whether the request in progress waits in a queue. Over HTTP/1, there is at most one such request.
    pub(super) in_queue: InQueue,
    /// Notified when the client should reconnect elsewhere.
    elsewhere: Notify,
}

impl Activity {
    pub(super) fn new(open: &Arc<OpenConnection>, protocol: Protocol) -> Arc<Self> {
        let (requests, asked, open_bodies, reads, reads_answered, writes) = Default::default();
        let (blocked, unsent, over, tunnel, closed_after, in_queue, elsewhere) = Default::default();
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
            unsent,
            over,
            tunnel,
            closed_after,
            in_queue,
            elsewhere,
        })
    }

    /// Makes the connection evictable if no request is in progress. Over HTTP/2, a request whose response was sent does
    /// not count, even if its body was not read to the end.
    fn rest_if_idle(&self) {
        let is_idle = match self.protocol {
            Protocol::Http2 => !self.is_busy() && !self.blocked.load(Relaxed),
            _ => self.is_between_requests(),
        };
        if is_idle {
            self.open.set_idle(self.open.proxy.clock.now());
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

    /// Call this function after each poll of an HTTP/2 connection. While the socket is full, h2 has parts of responses, up
    /// to 64 KiB of each, although their requests have ended. So the connection is not idle.
    pub(super) fn polled(&self) {
        let is_unsent = self.blocked.load(Relaxed);
        match (self.unsent.swap(is_unsent, Relaxed), is_unsent) {
            (false, true) => drop(self.open.set_busy()),
            (true, false) => self.rest_if_idle(),
            _ => {}
        }
    }

    /// Records that the connection accepts no more requests. Later bytes from the client are not requests.
    pub(super) fn end(&self) {
        self.over.store(true, Relaxed);
    }

    /// Records that the connection becomes a tunnel. The agent cannot detect when a tunnel is idle.
    pub(super) fn become_tunnel(&self) {
        self.tunnel.store(true, Relaxed);
        self.end();
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.tunnel.load(Relaxed)
    }

    /// Makes the task of an HTTP/2 connection send GOAWAY, so that the client reconnects elsewhere.
    pub(super) fn send_away(&self) {
        self.elsewhere.notify_one();
    }

    /// Returns once [`Self::send_away`] was called.
    pub(super) async fn sent_away(&self) {
        self.elsewhere.notified().await;
    }

    /// Returns true if no request is in progress and no byte of the next one has arrived.
    pub(super) fn is_idle(&self) -> bool {
        self.is_between_requests() && self.reads.load(Relaxed) == self.reads_answered.load(Relaxed)
    }

    /// Returns true if no request is in progress and the connection accepts another one. Part of the next head may have
    /// arrived.
    pub(super) fn is_between_requests(&self) -> bool {
        self.requests.load(Relaxed) == 0
            && self.open_bodies.load(Relaxed) == 0
            && !self.blocked.load(Relaxed)
            && !self.over.load(Relaxed)
    }

    /// The number of requests in progress, and of all requests so far.
    pub(super) fn requests(&self) -> (u64, u64) {
        (self.requests.load(Relaxed), self.asked.load(Relaxed))
    }

    /// Returns true if a request has arrived and its response has not ended.
    pub(super) fn is_busy(&self) -> bool {
        self.requests.load(Relaxed) > 0
    }

    /// Returns true if a request body was not read to its end.
    pub(super) fn has_open_body(&self) -> bool {
        self.open_bodies.load(Relaxed) > 0
    }

    /// Records that the client closed its sending side. The client may still wait for its response.
    pub(super) fn half_closed(&self) {
        let now = self.writes.load(Relaxed) + 1;
        let _ = self.closed_after.compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// Returns true if the client closed its side and nothing was written since then. A write would show whether the
    /// client has disconnected.
    pub(super) fn may_be_disconnected(&self) -> bool {
        self.closed_after.load(Relaxed) == self.writes.load(Relaxed) + 1
    }

    /// Returns true if the client closed its side while its request waits in a queue. The app has received nothing of
    /// the request, and the client counts as disconnected.
    pub(super) fn has_left_queue(&self) -> bool {
        self.in_queue.get() && self.closed_after.load(Relaxed) > 0
    }

    /// The number of writes so far, if the client accepts no more data; `None` otherwise.
    pub(super) fn stuck_after(&self) -> Option<u64> {
        self.blocked.load(Relaxed).then(|| self.writes.load(Relaxed))
    }
}

/// A request in progress. Dropping this value ends it.
#[derive(Debug)]
pub(super) struct Answering(Arc<Activity>);

impl Answering {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        activity.requests.fetch_add(1, Relaxed);
        activity.asked.fetch_add(1, Relaxed);
        // The result is ignored: if the connection must close immediately, the task that serves it closes it.
        activity.open.set_busy();
        Self(Arc::clone(activity))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Relaxed);
        self.0.reads_answered.store(self.0.reads.load(Relaxed), Relaxed);
        self.0.rest_if_idle();
    }
}

/// A request body that has not ended.
#[derive(Debug)]
pub(super) struct OpenBody(Arc<Activity>);

impl OpenBody {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        activity.open_bodies.fetch_add(1, Relaxed);
        Self(Arc::clone(activity))
    }

    /// Records that the body was read to its end. Without this call, the connection counts as busy until it closes.
    pub(super) fn end(self) {
        self.0.open_bodies.fetch_sub(1, Relaxed);
        self.0.rest_if_idle();
    }
}

/// A response body. The request counts as in progress until this value is dropped.
#[derive(Debug)]
pub(super) struct TrackedBody<B> {
    body: B,
    _answering: Answering,
    /// Tracks whether an HTTP/2 client reads.
    taking: Option<Arc<ReadProgress>>,
    /// The data that the HTTP/2 client gets next.
    rest: Bytes,
}

/// The largest piece of a body that an HTTP/2 client gets in one step. A client that accepts such a piece is not
/// stalled. The app's connection delivers pieces of up to 64 KiB, for which a slow client needs longer.
const PIECE: usize = 16 * 1024;

impl<B> TrackedBody<B> {
    pub(super) fn new(body: B, answering: Answering) -> Self {
        Self { body, _answering: answering, taking: ReadProgress::current(), rest: Bytes::new() }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
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
