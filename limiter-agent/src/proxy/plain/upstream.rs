//! One connection to the app, for the duration of one request.

use std::{
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::net::TcpStream;

use super::{
    buffer::{Buffer, Buffers, Outbox},
    calls,
};

#[derive(Debug)]
pub(super) struct Upstream {
    stream: TcpStream,
    /// The connection was opened for this request. If it fails, a retry on another connection would fail, too.
    pub(super) fresh: bool,
    request: Option<Outbox>,
    sent: usize,
    /// The app no longer reads the request. The bytes that it has sent can still be a response.
    write_failed: bool,
    /// The runtime will wake this task when the socket is readable.
    asked: bool,
    /// The bytes received of the response.
    inbox: Option<Buffer>,
}

impl Upstream {
    pub(super) fn new(stream: TcpStream, fresh: bool, request: Outbox) -> Self {
        Self { stream, fresh, request: Some(request), sent: 0, write_failed: false, asked: false, inbox: None }
    }

    /// Sends the rest of the request, and reads available bytes of the response, up to `most` unread bytes. Returns 0
    /// at the end of the stream.
    pub(super) fn poll_read(
        &mut self,
        most: usize,
        buffers: &Rc<Buffers>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.push(cx);
        // The connection takes a buffer only when there are bytes to read.
        let mut inbox = match self.inbox.take() {
            Some(inbox) => inbox,
            None if !self.asked => {
                ready!({
                    self.asked = true;
                    self.stream.poll_read_ready(cx)
                })?;
                buffers.lend_for_answer()
            }
            // A woken task most likely has bytes to read.
            None => buffers.lend_for_answer(),
        };
        if !inbox.make_room(most) {
            self.inbox = Some(inbox);
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        }
        let read = inbox.poll_fill(&self.stream, cx);
        self.inbox = Some(inbox).filter(|inbox| !inbox.is_empty());
        read
    }

    fn push(&mut self, cx: &mut Context<'_>) {
        let Some(request) = &self.request else { return };
        while self.sent < request.bytes.len() && !self.write_failed {
            match calls::poll_write(&self.stream, &request.bytes[self.sent..], cx) {
                Poll::Ready(Ok(count @ 1..)) => self.sent += count,
                Poll::Ready(_) => self.write_failed = true,
                Poll::Pending => return,
            }
        }
    }

    /// The unused bytes of the response.
    pub(super) fn unread(&self) -> &[u8] {
        self.inbox.as_ref().map_or(&[], Buffer::unread)
    }

    pub(super) fn consume(&mut self, count: usize) {
        if let Some(inbox) = &mut self.inbox {
            inbox.consume(count);
            if inbox.is_empty() {
                self.inbox = None;
            }
        }
    }

    /// Whether no byte of the request was sent.
    pub(super) fn is_untouched(&self) -> bool {
        self.sent == 0
    }

    /// Returns the request for a retry.
    pub(super) fn into_request(self) -> Option<Outbox> {
        self.request
    }

    /// Releases the request if it was sent completely. Call this function when there is a response.
    pub(super) fn answered(&mut self) {
        self.request.take_if(|request| self.sent == request.bytes.len());
    }

    /// Ends the exchange, with `count` bytes of the response still in the buffer. Returns those bytes, and the
    /// connection for the next request if this request was sent and answered completely, with no bytes after the
    /// response.
    pub(super) fn finish(self, count: usize) -> (Option<Buffer>, Option<TcpStream>) {
        let whole = self.request.is_none() && self.unread().len() == count;
        (self.inbox, whole.then_some(self.stream))
    }
}
