//! One connection to the app while it answers one request.

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
    /// Made for this request: if it fails, no other connection would do better.
    pub(super) fresh: bool,
    request: Option<Outbox>,
    sent: usize,
    /// It takes no more of the request. What it said before may still be an answer.
    deaf: bool,
    /// The runtime was asked to wake this task once there is something to read.
    asked: bool,
    /// What came of the answer.
    inbox: Option<Buffer>,
}

impl Upstream {
    pub(super) fn new(stream: TcpStream, fresh: bool, request: Outbox) -> Self {
        Self { stream, fresh, request: Some(request), sent: 0, deaf: false, asked: false, inbox: None }
    }

    /// Sends what is left of the request, and reads what has come of the answer, up to `most` bytes that are unread. 0 is
    /// the end.
    pub(super) fn poll_read(
        &mut self,
        most: usize,
        buffers: &Rc<Buffers>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.push(cx);
        // A buffer is wanted only once there is something to put into it.
        let mut inbox = match self.inbox.take() {
            Some(inbox) => inbox,
            None if !self.asked => {
                ready!({
                    self.asked = true;
                    self.stream.poll_read_ready(cx)
                })?;
                buffers.lend_for_answer()
            }
            // Woken, most likely by the app.
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
        while self.sent < request.bytes.len() && !self.deaf {
            match calls::poll_write(&self.stream, &request.bytes[self.sent..], cx) {
                Poll::Ready(Ok(count @ 1..)) => self.sent += count,
                Poll::Ready(_) => self.deaf = true,
                Poll::Pending => return,
            }
        }
    }

    /// What came of the answer and was not used yet.
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

    /// Whether no byte of the request has left this program.
    pub(super) fn is_untouched(&self) -> bool {
        self.sent == 0
    }

    /// The request, to be sent once more.
    pub(super) fn into_request(self) -> Option<Outbox> {
        self.request
    }

    /// Forgets the request if it was sent, once there is an answer to it.
    pub(super) fn answered(&mut self) {
        self.request.take_if(|request| self.sent == request.bytes.len());
    }

    /// The last `count` bytes of the answer, and the connection for the next request, if this one was sent and answered
    /// whole and nothing came behind the answer.
    pub(super) fn finish(self, count: usize) -> (Option<Buffer>, Option<TcpStream>) {
        let whole = self.request.is_none() && self.unread().len() == count;
        (self.inbox, whole.then_some(self.stream))
    }
}
