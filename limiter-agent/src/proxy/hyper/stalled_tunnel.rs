//! A stream to a client that fails if the client does not read for too long. Such a client would keep a tunnel open for
//! ever: while it reads nothing, the agent cannot read the end of the app.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// The stream, with the longest pause between two writes that the client accepts.
#[derive(Debug)]
pub(super) struct StallLimit<S> {
    stream: S,
    limit: Duration,
    /// Ends `limit` after the first write that the client did not accept. `None` if it accepted the last write.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> StallLimit<S> {
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, stall: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallLimit<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if let Poll::Ready(written) = Pin::new(&mut this.stream).poll_write(cx, buf) {
            this.stall = None;
            return Poll::Ready(written);
        }
        let limit = this.limit;
        ready!(this.stall.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn only_a_client_that_reads_nothing_is_too_slow() {
        let (agent, mut client) = duplex(10);
        let mut agent = StallLimit::new(agent, LIMIT);
        let slow = async {
            let mut byte = [0];
            for _ in 0..10 {
                sleep(LIMIT - Duration::from_secs(1)).await;
                client.read_exact(&mut byte).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(agent.write_all(&[1; 20]), slow);
        written.unwrap();
        // A silent client does not stall while no bytes wait for it.
        sleep(10 * LIMIT).await;
        let begun = crate::clock::now();
        let error = agent.write_all(b"x").await.unwrap_err();
        assert_eq!((error.kind(), crate::clock::now() - begun), (io::ErrorKind::TimedOut, LIMIT));
    }
}
