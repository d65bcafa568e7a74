//! A client's connection on the short path: the events for which its task waits, and the time limits of these waits.

use std::{
    future::poll_fn,
    io::IoSlice,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    io::{AsyncWrite, Interest},
    net::TcpStream,
    task::unconstrained,
    time::{Sleep, sleep},
};
use weir_core::Time;

use super::{Client, buffer::Buffer, calls, pause::Pause};
use crate::{clock, proxy::open_connection::HALF_CLOSED_TIMEOUT};

/// The interval between looks at a socket about which the runtime wakes no task.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct ClientConnection<'a> {
    pub(super) stream: TcpStream,
    pub(super) client: &'a Client,
    pub(super) pause: Pause,
    /// The connection has served a request before the current one.
    pub(super) used: bool,
    /// Bytes that were read but not yet used, or `None` if there are none.
    pub(super) inbox: Option<Buffer>,
    leaving: Leaving,
    /// The time of the next look at the socket. The timer is created when it is first needed.
    next_look: Option<Pin<Box<Sleep>>>,
    /// The runtime will wake this task when the socket is readable.
    asked: bool,
}

/// The agent's knowledge of whether the client has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// The agent must check the socket.
    Unknown,
    /// The client closed its side, and may still wait for its response. It counts as disconnected at this time if
    /// nothing was written before.
    HalfClosed(Time),
    /// The client sent bytes that stay in the kernel until the response has ended. The runtime wakes no task when a
    /// client leaves behind such bytes, so the agent looks once per [`LOOK_INTERVAL`].
    Unread,
    /// The client closed its side, and something was written since. If the client has disconnected, the write causes a
    /// reset, for which the agent looks once per [`LOOK_INTERVAL`]: the runtime wakes no task for it.
    Written,
}

/// The client has disconnected, or counts as disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// The sending side of the connection.
pub(super) struct SendHalf<'l> {
    stream: &'l TcpStream,
    leaving: &'l mut Leaving,
}

impl SendHalf<'_> {
    /// Sends as many bytes as the socket accepts now. Returns that number.
    #[inline(always)] // see the docs of `calls`
    pub(super) fn send_at_once(self, bytes: &[u8]) -> Result<usize, Gone> {
        let count = calls::write_at_once(self.stream, bytes).map_err(|_| Gone)?;
        if count > 0 {
            self.leaving.record_write();
        }
        Ok(count)
    }
}

impl Leaving {
    /// Records a write to the client. If the client closed its side, the next write shows whether it has disconnected.
    fn record_write(&mut self) {
        if let Self::HalfClosed(_) = self {
            *self = Self::Written;
        }
    }
}

impl<'a> ClientConnection<'a> {
    pub(super) fn new(stream: TcpStream, client: &'a Client, used: bool) -> Self {
        let pause = Pause::new(client.worker.proxy.clock);
        Self { stream, client, pause, used, inbox: None, leaving: Leaving::Unknown, next_look: None, asked: false }
    }

    /// Starts to check whether the client has disconnected.
    pub(super) fn watch(&mut self) {
        self.leaving = Leaving::Unknown;
    }

    /// Starts a wait with this limit; `None` means no limit.
    pub(super) fn begin(&mut self, limit: Option<Duration>) {
        self.pause.begin(limit);
        if let Leaving::HalfClosed(until) = self.leaving {
            self.pause.end_by(until);
        }
    }

    /// Returns ready when the client has disconnected.
    pub(super) fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.leaving {
            Leaving::HalfClosed(until) if self.now() < until => return Poll::Pending,
            Leaving::HalfClosed(_) => return Poll::Ready(()),
            Leaving::Unread | Leaving::Written => {
                if self.waits_for_next_look(cx) {
                    return Poll::Pending;
                }
            }
            Leaving::Unknown => match self.stream.poll_read_ready(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {}
            },
        }
        match self.stream.ready(Interest::READABLE | Interest::WRITABLE).now_or_never() {
            Some(Ok(ready)) if ready.is_write_closed() => return Poll::Ready(()),
            Some(Ok(ready)) if ready.is_read_closed() && self.leaving != Leaving::Written => {
                let until = self.now().saturating_add(HALF_CLOSED_TIMEOUT);
                self.leaving = Leaving::HalfClosed(until);
                self.pause.end_by(until);
            }
            // Without a budget, the task does not see the state of the socket now.
            Some(_) | None => {
                if self.leaving != Leaving::Written {
                    self.leaving = Leaving::Unread;
                }
                while !self.waits_for_next_look(cx) {}
            }
        }
        Poll::Pending
    }

    /// Returns false once per [`LOOK_INTERVAL`], and otherwise lets the timer wake the task.
    #[cold]
    fn waits_for_next_look(&mut self, cx: &mut Context<'_>) -> bool {
        let timer = self.next_look.get_or_insert_with(|| Box::pin(sleep(LOOK_INTERVAL)));
        let waits = pin!(unconstrained(timer.as_mut())).poll(cx).is_pending();
        if !waits {
            timer.as_mut().reset(clock::now() + LOOK_INTERVAL);
        }
        waits
    }

    pub(super) fn now(&self) -> Time {
        self.client.worker.proxy.clock.now()
    }

    /// Reads more of a request into the buffer. A connection without a buffer takes one when the first bytes arrive.
    /// Returns 0 at the end of the stream.
    #[inline(always)] // see the docs of `calls`
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Gone>> {
        // A client that has sent nothing gets no buffer. A woken task most likely has bytes to read.
        if self.inbox.is_none() && !self.asked && self.stream.poll_read_ready(cx).is_pending() {
            self.asked = true;
            return Poll::Pending;
        }
        self.asked = false;
        let inbox = self.inbox.get_or_insert_with(|| self.client.worker.buffers.lend());
        let read = inbox.poll_fill(&self.stream, cx);
        if inbox.is_empty() {
            self.inbox = None;
        }
        read.map_err(|_| Gone)
    }

    /// The unused bytes, if there are any, together with the sending side.
    #[inline(always)] // see the docs of `calls`
    pub(super) fn ends(&mut self) -> Option<(&[u8], SendHalf<'_>)> {
        let back = SendHalf { stream: &self.stream, leaving: &mut self.leaving };
        Some((self.inbox.as_ref()?.unread(), back))
    }

    /// Marks `count` bytes as used.
    #[inline(always)] // see the docs of `calls`
    pub(super) fn consume(&mut self, count: usize) {
        let Some(inbox) = &mut self.inbox else { return };
        inbox.consume(count);
        if inbox.is_empty() {
            self.inbox = None;
        }
    }

    /// Sends head and body. Fails if the client does not read them.
    pub(super) async fn send(&mut self, head: &[u8], body: &[u8]) -> Result<(), Gone> {
        let (mut head, mut body) = (head, body);
        let mut held_up = false;
        poll_fn(|cx| {
            while !(head.is_empty() && body.is_empty()) {
                let written = match (head, body) {
                    (all, []) | ([], all) => calls::poll_write(&self.stream, all, cx),
                    (head, body) => {
                        let both = [IoSlice::new(head), IoSlice::new(body)];
                        Pin::new(&mut self.stream).poll_write_vectored(cx, &both)
                    }
                };
                match written {
                    Poll::Ready(Ok(count @ 1..)) => {
                        let of_head = count.min(head.len());
                        (head, body) = (&head[of_head..], &body[count - of_head..]);
                        held_up = false;
                        self.leaving.record_write();
                    }
                    Poll::Ready(_) => return Poll::Ready(Err(Gone)),
                    Poll::Pending => {
                        if !held_up {
                            held_up = true;
                            self.begin(Some(self.client.worker.proxy.settings.stall_timeout));
                        }
                        let over = self.poll_disconnected(cx).is_ready() || self.pause.poll_over(cx).is_ready();
                        return if over { Poll::Ready(Err(Gone)) } else { Poll::Pending };
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }
}
