//! One call, and the memory that it holds while its client sends and receives.
//!
//! A client can begin any number of messages and complete none of them. So the calls of all connections together hold at
//! most [`MOST_HELD`]. Above it, the connection that holds the most is evicted: the messages of a proxy are small and
//! complete. If new messages were refused instead, one client could keep out all others.

use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::body::{Bytes, HttpBody};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tonic::codec::BufferSettings;
use weir_client::agent::{Answering, Requests};

/// The maximum memory for all calls of the process, in bytes.
const MOST_HELD: usize = 48 * 1024 * 1024;

/// The memory for a call without its messages, rounded up.
const MEMORY_OF_CALL: usize = 4096;

/// The memory for a piece of a body, without its bytes.
const MEMORY_OF_PIECE: usize = 64;

/// The time limit for a question and its answer, and for a report, or for each part of a large one.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of bytes that a client can send on a stream before the service reads them. A connection can have twice
/// as many. The default of hyper is 1 MiB for each connection.
pub(super) const WINDOW: u32 = 256 * 1024;

/// The number of bytes of one response to buffer until the client reads them, plus one message. The default of hyper is
/// 400 KiB, and no call counts these bytes.
pub(super) const SEND_BUFFER: usize = 16 * 1024;

/// Returns the sizes of the buffers of a call. The default ones have 8 KiB, and a question some hundred bytes.
pub(super) fn buffers() -> BufferSettings {
    BufferSettings::new(1024, 32 * 1024)
}

/// A call, from its head until the end of its response.
#[derive(Debug)]
pub(super) struct Call {
    requests: Arc<Requests>,
    held: AtomicUsize,
    /// Set once a whole message has arrived, or a part of a large report. Before, the connection is evicted like one without a call.
    answering: OnceLock<Answering>,
}

impl Call {
    pub(super) fn new(requests: &Arc<Requests>) -> Arc<Self> {
        let call = Self { requests: Arc::clone(requests), held: AtomicUsize::default(), answering: OnceLock::new() };
        call.hold(MEMORY_OF_CALL);
        Arc::new(call)
    }

    /// Counts bytes until they are released, or the call ends.
    pub(super) fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Relaxed);
        self.requests.hold(bytes);
    }

    pub(super) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
        self.requests.release(bytes);
    }

    /// Evicts the connection that holds the most if all calls together hold too much. Returns true if it did so: the
    /// connection ends when this task yields.
    pub(super) fn evict_above_the_bound(&self) -> bool {
        self.requests.is_over(MOST_HELD)
    }

    /// A whole message has arrived, or a part of a large report.
    pub(super) fn begin(&self) {
        self.answering.get_or_init(|| self.requests.begin(false));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.requests.release(*self.held.get_mut());
    }
}

/// The body of a call with one message. Its bytes count until the call ends.
pub(super) struct HeldBody {
    body: Incoming,
    call: Arc<Call>,
    has_yielded: bool,
}

impl HeldBody {
    pub(super) fn new(body: Incoming, call: Arc<Call>) -> Self {
        Self { body, call, has_yielded: false }
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if !self.has_yielded && self.call.evict_above_the_bound() {
            self.has_yielded = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_yielded = false;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.call.hold(frame.data_ref().map_or(0, Bytes::len) + MEMORY_OF_PIECE),
            Some(Err(_)) => {}
            None => self.call.begin(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
