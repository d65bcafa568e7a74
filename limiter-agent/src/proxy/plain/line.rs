//! A client's connection under the short way: what is waited for on it, and for how long.

use std::{
    future::poll_fn,
    io::IoSlice,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    io::{AsyncWrite, Interest},
    net::TcpStream,
};

use weir_core::Time;

use super::{Client, buffer::Buffer, calls, pause::Pause};
use crate::proxy::client::HALF_CLOSED_TIMEOUT;

#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) stream: TcpStream,
    pub(super) client: &'a Client,
    pub(super) pause: Pause,
    /// A request was answered on this connection before the one that is looked at.
    pub(super) used: bool,
    /// What was read and not used yet; none if there is nothing.
    pub(super) inbox: Option<Buffer>,
    leaving: Leaving,
    /// The runtime was asked to wake this task once there is something to read.
    asked: bool,
}

/// What is known of the client's leaving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// Nothing: to be looked for.
    Unknown,
    /// It has closed its side, and may wait for its answer all the same: until then, if nothing can be written to it.
    HalfClosed(Time),
    /// It is there, or a write will tell.
    Settled,
}

/// The client is not there any more, or may as well not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// To the client.
pub(super) struct Back<'l> {
    stream: &'l TcpStream,
    leaving: &'l mut Leaving,
}

impl Back<'_> {
    /// Sends what there is room for now; so much of it.
    #[inline(always)] // as `calls` says
    pub(super) fn send_at_once(self, bytes: &[u8]) -> Result<usize, Gone> {
        let count = calls::write_at_once(self.stream, bytes).map_err(|_| Gone)?;
        if count > 0 {
            self.leaving.settle();
        }
        Ok(count)
    }
}

impl Leaving {
    /// Something was written: a client that has closed its side will be told by a write whether it is there.
    fn settle(&mut self) {
        if let Self::HalfClosed(_) = self {
            *self = Self::Settled;
        }
    }
}

impl<'a> Line<'a> {
    pub(super) fn new(stream: TcpStream, client: &'a Client, used: bool) -> Self {
        let pause = Pause::new(client.shared.proxy.clock);
        Self { stream, client, pause, used, inbox: None, leaving: Leaving::Unknown, asked: false }
    }

    /// Looks for the client's leaving from now on, until it sends something.
    pub(super) fn watch(&mut self) {
        self.leaving = if self.inbox.is_none() { Leaving::Unknown } else { Leaving::Settled };
    }

    /// What is waited for from now on may take so long; without a limit as long as it takes.
    pub(super) fn begin(&mut self, limit: Option<Duration>) {
        self.pause.begin(limit);
        if let Leaving::HalfClosed(until) = self.leaving {
            self.pause.end_by(until);
        }
    }

    /// Ready when the client has left.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.leaving {
            Leaving::Settled => return Poll::Pending,
            Leaving::HalfClosed(until) if self.now() < until => return Poll::Pending,
            Leaving::HalfClosed(_) => return Poll::Ready(()),
            Leaving::Unknown => {}
        }
        match self.stream.poll_read_ready(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(())) => {}
        }
        match self.stream.ready(Interest::READABLE | Interest::WRITABLE).now_or_never() {
            Some(Ok(ready)) if ready.is_write_closed() => return Poll::Ready(()),
            Some(Ok(ready)) if ready.is_read_closed() => {
                let until = self.now().saturating_add(HALF_CLOSED_TIMEOUT);
                self.leaving = Leaving::HalfClosed(until);
                self.pause.end_by(until);
            }
            // The next request, which stays in the kernel until its turn comes.
            Some(_) => self.leaving = Leaving::Settled,
            // Put off because the task has had its share of the runtime, which wakes it.
            None => {}
        }
        Poll::Pending
    }

    pub(super) fn now(&self) -> Time {
        self.client.shared.proxy.clock.now()
    }

    /// Reads more of a request, into a buffer that is there or comes with the first bytes. 0 is the end.
    #[inline(always)] // as `calls` says
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Gone>> {
        // Nothing is lent to a client that has to be waited for. Woken, it has most likely sent something.
        if self.inbox.is_none() && !self.asked && self.stream.poll_read_ready(cx).is_pending() {
            self.asked = true;
            return Poll::Pending;
        }
        self.asked = false;
        let inbox = self.inbox.get_or_insert_with(|| self.client.shared.buffers.lend());
        let read = inbox.poll_fill(&self.stream, cx);
        if inbox.is_empty() {
            self.inbox = None;
        }
        read.map_err(|_| Gone)
    }

    /// What was read and not used yet, if there is any, and the way back, while it lies there.
    #[inline(always)] // as `calls` says
    pub(super) fn ends(&mut self) -> Option<(&[u8], Back<'_>)> {
        let back = Back { stream: &self.stream, leaving: &mut self.leaving };
        Some((self.inbox.as_ref()?.unread(), back))
    }

    /// So much of it was used.
    #[inline(always)] // as `calls` says
    pub(super) fn consume(&mut self, count: usize) {
        let Some(inbox) = &mut self.inbox else { return };
        inbox.consume(count);
        if inbox.is_empty() {
            self.inbox = None;
        }
    }

    /// Sends all of both, unless the client does not take it.
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
                        self.leaving.settle();
                    }
                    Poll::Ready(_) => return Poll::Ready(Err(Gone)),
                    Poll::Pending => {
                        if !held_up {
                            held_up = true;
                            self.begin(Some(self.client.shared.proxy.settings.stall_timeout));
                        }
                        let over = self.poll_gone(cx).is_ready() || self.pause.poll_over(cx).is_ready();
                        return if over { Poll::Ready(Err(Gone)) } else { Poll::Pending };
                    }
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }
}
