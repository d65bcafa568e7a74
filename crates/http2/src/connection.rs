//! A [`Codec`] over a transport, such as TLS.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{Codec, Error, Request};

/// What is read at a time. It is on the stack: nothing is kept for what may come.
const READ_BYTES: usize = 8 * 1024;

/// An open connection. It is closed with its value.
#[derive(Debug)]
pub struct Connection<T> {
    transport: T,
    codec: Codec,
    /// Whether the transport may hold something that was written.
    is_unflushed: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    /// Over a transport on which nothing was said yet. The first words go out with the first request.
    pub fn new(transport: T) -> Self {
        Self { transport, codec: Codec::new(), is_unflushed: false }
    }

    /// Sends a request and reads the whole answer. If this is dropped before its end, the peer is told with the next
    /// request that nobody waits for the answer.
    ///
    /// # Errors
    ///
    /// If there is no answer; see [`Error`].
    pub async fn send(&mut self, request: Request<'_>) -> Result<Response<Bytes>, Error> {
        self.codec.start(request)?;
        poll_fn(|context| {
            let moved = self.drive(context);
            match self.codec.take_outcome() {
                Some(outcome) => Poll::Ready(outcome),
                None => match moved {
                    Poll::Ready(error) => Poll::Ready(Err(error)),
                    Poll::Pending => Poll::Pending,
                },
            }
        })
        .await
    }

    /// Sends a request and waits for the head of its answer. The body is read by [`more`](Self::more), for as long as the peer
    /// goes on, and given up by the next request.
    ///
    /// # Errors
    ///
    /// If there is no answer; see [`Error`].
    pub async fn begin(&mut self, request: Request<'_>) -> Result<Response<()>, Error> {
        self.codec.start_streamed(request)?;
        poll_fn(|context| {
            let moved = self.drive(context);
            match self.codec.take_head() {
                Some(head) => Poll::Ready(Ok(head)),
                None => self.failed(moved).map(Err),
            }
        })
        .await
    }

    /// Waits for more of the body of an answer, and moves it to the end of `body`; false at its end. Nothing is lost if this
    /// is dropped before.
    ///
    /// # Errors
    ///
    /// If the answer breaks off; see [`Error`].
    pub async fn more(&mut self, body: &mut Vec<u8>) -> Result<bool, Error> {
        if !self.codec.is_streaming() && !self.codec.has_news() {
            return Ok(false);
        }
        poll_fn(|context| {
            let moved = self.drive(context);
            if self.codec.take_part(body) {
                return Poll::Ready(Ok(true));
            }
            if self.codec.take_end() {
                return Poll::Ready(Ok(false));
            }
            self.failed(moved).map(Err)
        })
        .await
    }

    /// Why what was begun comes to nothing, if it does.
    fn failed(&mut self, moved: Poll<Error>) -> Poll<Error> {
        match (self.codec.take_outcome(), moved) {
            (Some(Err(error)), _) | (None, Poll::Ready(error)) => Poll::Ready(error),
            _ => Poll::Pending,
        }
    }

    /// Waits until no exchange can begin any more, and meanwhile answers the peer; why that is so.
    pub async fn closed(&mut self) -> Error {
        self.codec.cancel();
        poll_fn(|context| self.drive(context)).await
    }

    /// Moves bytes until there is something to be taken, or nothing moves any more. Ready with the end of the connection.
    fn drive(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        loop {
            let written = self.write(context);
            if self.codec.has_news() {
                return Poll::Pending;
            }
            if let Some(end) = self.codec.end() {
                return Poll::Ready(end);
            }
            // Even if nothing can be written: a peer that closed may have said why.
            match (self.read(context), written) {
                (Poll::Ready(Ok(())), _) => {}
                (Poll::Ready(Err(error)), _) | (Poll::Pending, Poll::Ready(Err(error))) => {
                    // The peer may hear what it did wrong; nobody waits for that.
                    let _ = self.write(context);
                    self.codec.receive_end();
                    self.codec.take_outcome();
                    return Poll::Ready(error);
                }
                (Poll::Pending, _) => return Poll::Pending,
            }
        }
    }

    fn write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            let bytes = self.codec.outgoing();
            if bytes.is_empty() {
                break;
            }
            let written = ready!(Pin::new(&mut self.transport).poll_write(context, bytes)).map_err(Error::Io)?;
            if written == 0 {
                return Poll::Ready(Err(Error::Io(io::ErrorKind::WriteZero.into())));
            }
            self.is_unflushed = true;
            self.codec.sent(written);
        }
        if self.is_unflushed {
            ready!(Pin::new(&mut self.transport).poll_flush(context)).map_err(Error::Io)?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.transport).poll_read(context, &mut space)).map_err(Error::Io)?;
        if space.filled().is_empty() {
            return Poll::Ready(Err(Error::Closed));
        }
        Poll::Ready(self.codec.receive(space.filled()))
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
