//! An HTTP/1.1 connection to the app for hyper, which ends its turn after some bytes.
//!
//! hyper reads on while the app sends interim responses, or digits of the size of a chunk.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::give_way::{TURN, give_way};

#[derive(Debug)]
pub(super) struct AppSocket<S> {
    stream: S,
    /// The number of bytes that hyper has read in this turn.
    read: usize,
}

impl<S> AppSocket<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AppSocket<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read >= TURN {
            self.read = 0;
            return give_way(cx);
        }
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.read += buf.filled().len() - before;
        if outcome.is_pending() {
            self.read = 0;
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AppSocket<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, repeat};

    use super::*;

    #[tokio::test]
    async fn an_app_that_always_sends_gets_one_turn_after_the_other() {
        let mut app = AppSocket::new(repeat(b'1'));
        let mut buffer = vec![0; TURN / 4];
        for _ in 0..3 {
            let mut read = 0;
            while let Some(count) = app.read(&mut buffer).now_or_never() {
                read += count.expect("the app sends");
            }
            assert_eq!(read, TURN);
        }
    }
}
