//! A connection to the app, for hyper.
//!
//! An app can answer an upload before it has read it, for example with 413, and close the connection. Then the kernel
//! resets the connection because of the unread bytes, and the next write fails. The answer is already in the agent's
//! socket: the kernel keeps what arrived before a reset. hyper ends a request at the first write error, so this stream
//! reports the error only when everything was read. A response without a length that such a reset cuts off looks complete.

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

use crate::{
    clock,
    proxy::stalled_uploads::{CURRENT, Stall},
};

/// The longest pause of the reader after a failed write. hyper does not read while a client does not take the answer,
/// and never reads again if bytes follow the answer.
const PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct AppStream<S> {
    stream: S,
    /// Whether the app sends nothing more.
    is_read: bool,
    /// Runs after a write has failed. The app takes no more bytes then.
    failed: Option<Pin<Box<Sleep>>>,
    /// The pause of an app that reads an upload.
    stall: Option<Stall>,
}

impl<S> AppStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, is_read: false, failed: None, stall: None }
    }
}

impl<S: AsyncWrite + Unpin> AppStream<S> {
    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.failed.is_none() {
            let Poll::Ready(written) = write(Pin::new(&mut self.stream), cx) else {
                return self.poll_stalled(cx);
            };
            self.stall = None;
            if written.is_ok() {
                return Poll::Ready(written);
            }
        }
        let failed = self.failed.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
        if !self.is_read {
            ready!(failed.as_mut().poll(cx));
        }
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }
}

impl<S> AppStream<S> {
    /// Fails once the agent has given the upload up. A tunnel has its own task and no upload.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.stall.is_none() {
            self.stall = CURRENT.try_with(|upload| upload.borrow().as_ref().map(Stall::new)).ok().flatten();
        }
        let Some(stall) = &mut self.stall else { return Poll::Pending };
        ready!(stall.poll_given_up(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AppStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        self.is_read = read.is_err() || buf.filled().len() == before;
        if let Some(failed) = &mut self.failed {
            failed.as_mut().reset(clock::now() + PAUSE);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AppStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
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
    use std::{cell::RefCell, net::Ipv4Addr, sync::Arc};

    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, Join, duplex, join};

    use super::*;
    use crate::proxy::stalled_uploads::{PATIENCE, StalledUploads, Upload};

    /// A connection that was reset after the app had sent these bytes.
    fn reset_after(answer: &'static [u8]) -> AppStream<Join<&'static [u8], Broken>> {
        AppStream::new(join(answer, Broken))
    }

    struct Broken;

    impl AsyncWrite for Broken {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_when_everything_was_read() {
        let mut app = reset_after(b"answer");
        for _ in 0..3 {
            assert!(app.write(b"x").now_or_never().is_none());
            app.read_exact(&mut [0; 2]).await.unwrap();
        }
        assert!(app.write(b"x").now_or_never().is_none());
        assert_eq!(app.read(&mut [0; 2]).await.unwrap(), 0);
        assert!(app.write(b"x").now_or_never().expect("the end is known").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_when_nothing_is_read_for_long() {
        let mut app = reset_after(b"answer");
        let begun = clock::now();
        assert!(app.write(b"x").now_or_never().is_none());
        sleep(PAUSE / 2).await;
        app.read_exact(&mut [0; 2]).await.unwrap();
        app.write(b"x").await.unwrap_err();
        assert_eq!(clock::now() - begun, PAUSE * 3 / 2);
    }

    /// Writes until the app accepts no more.
    async fn fill(app: &mut AppStream<DuplexStream>) {
        while app.write(b"x").now_or_never().is_some() {}
        sleep(PATIENCE).await;
        assert!(app.write(b"x").now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_counts_while_the_app_does_not_read_it() {
        let all = Arc::<StalledUploads>::default();
        let (agent, mut app) = duplex(4);
        let mut agent = AppStream::new(agent);
        let upload = async {
            Upload::new(&all, Ipv4Addr::LOCALHOST.into()).enter();
            fill(&mut agent).await;
            assert_eq!(all.number(), 1);
            app.read_exact(&mut [0; 2]).await.unwrap();
            agent.write_all(b"x").await.unwrap();
            assert_eq!(all.number(), 0);
            fill(&mut agent).await;
            all.give_up_all();
            // The response, which was not read, would delay another error.
            assert_eq!(agent.write(b"x").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        };
        CURRENT.scope(RefCell::default(), upload).await;
        let (tunnel, _app) = duplex(4);
        fill(&mut AppStream::new(tunnel)).await;
        assert_eq!(all.number(), 0, "a tunnel is no upload");
    }
}
