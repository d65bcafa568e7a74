//! A client's socket under hyper. It first returns bytes that were read before, records activity, and stops at bytes
//! that hyper must not read.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures::FutureExt;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

use super::{
    activity::Activity,
    fairness::{READ_BUDGET, give_way},
    head_frames::HeadFrames,
    strict::Strict,
};
use crate::{clock, proxy::traffic::Protocol};

/// The byte that hyper reads in place of the end of an invalid line, and the bytes after it. In a head or a chunk size,
/// hyper responds to this byte with 400. In a chunk extension, it responds to the line feed after the byte with 400.
/// The other bytes complete the head, so that hyper responds immediately.
const WRONG: u8 = 0;
const END: &[u8] = b"\n\r\n\r\n";

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    /// Bytes that were read before hyper got the socket.
    before: Bytes,
    /// Holds the open connection, so that a tunnel counts as one, too.
    activity: Arc<Activity>,
    /// `None` for HTTP/2.
    strict: Option<Strict>,
    /// `None` for HTTP/1.
    head_frames: Option<HeadFrames>,
    /// `strict` found an invalid line.
    stopped: bool,
    ended: bool,
    /// Set over HTTP/2, once hyper has written everything.
    lingering: Option<LingeringClose>,
}

/// Reads from the client after the last byte was written, until the client closes its side.
///
/// The client can send more bytes, such as the start of a request or a WINDOW_UPDATE. To a socket that is already
/// closed, the kernel answers them with a reset. A reset also discards the data that the client has not read yet.
#[derive(Debug)]
pub(in super::super) struct LingeringClose {
    silence: Pin<Box<Sleep>>,
    /// A deadline, so that a client cannot keep the connection open by sending single bytes.
    end: Instant,
}

/// The longest silence of the client, and the longest total time. The number of bytes has no limit: many clients read
/// the response to an upload only after they have sent the whole upload.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);
const GOODBYE_LONGEST: Duration = Duration::from_secs(10);

/// The size of the buffer, which is on the stack.
const GOODBYE_BUFFER: usize = 16 * 1024;

impl Default for LingeringClose {
    fn default() -> Self {
        Self { silence: Box::pin(sleep(GOODBYE_TIMEOUT)), end: clock::now() + GOODBYE_LONGEST }
    }
}

impl LingeringClose {
    /// Returns ready when the client has closed its side, or when a limit is reached.
    pub(in super::super) fn poll_over(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut read = 0;
        while self.silence.as_mut().poll(cx).is_pending() {
            if read >= READ_BUDGET {
                return give_way(cx);
            }
            let mut bytes = [const { MaybeUninit::uninit() }; GOODBYE_BUFFER];
            let mut bytes = ReadBuf::uninit(&mut bytes);
            let outcome = ready!(Pin::new(&mut *stream).poll_read(cx, &mut bytes));
            if outcome.is_err() || bytes.filled().is_empty() {
                break;
            }
            read += bytes.filled().len();
            self.silence.as_mut().reset(self.end.min(clock::now() + GOODBYE_TIMEOUT));
        }
        Poll::Ready(())
    }
}

impl Socket {
    pub(super) fn new(stream: TcpStream, before: Bytes, activity: &Arc<Activity>) -> Self {
        let (strict, head_frames) = match activity.protocol {
            Protocol::Http2 => (None, Some(HeadFrames::new(&activity.open))),
            _ => (Some(Strict::default()), None),
        };
        let activity = Arc::clone(activity);
        Self { stream, before, activity, strict, head_frames, stopped: false, ended: false, lingering: None }
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Returns the stream, and the earlier bytes that hyper has not read.
    pub(super) fn into_parts(self) -> (TcpStream, Bytes) {
        let before = if self.stopped { Bytes::new() } else { self.before };
        (self.stream, before)
    }

    /// Whether the client closed its side.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether the client has sent whole requests and waits for a response. The app may not have received the whole
    /// body yet, because hyper can read ahead of the app.
    fn is_busy(&self) -> bool {
        let Some(strict) = &self.strict else { return false };
        strict.is_whole() && self.activity.is_busy()
    }

    /// Detects whether the client has left while hyper does not read: hyper keeps the start of the next request, and
    /// does not read on before its response. Fails after a reset.
    fn look(&self) -> io::Result<()> {
        if self.strict.is_none() || !self.activity.is_busy() {
            return Ok(());
        }
        match self.stream.ready(Interest::READABLE | Interest::WRITABLE).now_or_never() {
            Some(Ok(ready)) if ready.is_write_closed() => Err(io::ErrorKind::ConnectionReset.into()),
            Some(Ok(ready)) if ready.is_read_closed() && self.is_busy() => {
                self.activity.half_closed();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(_) => self.activity.wrote(),
            Poll::Pending => self.activity.could_not_write(),
        }
        written
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let already = buf.filled().len();
        if self.before.is_empty() {
            if self.stopped {
                return Poll::Ready(Ok(()));
            }
            if Pin::new(&mut self.stream).poll_read(cx, buf)?.is_pending() {
                if let Some(head_frames) = &mut self.head_frames {
                    head_frames.check(cx)?;
                }
                return Poll::Pending;
            }
        } else {
            let count = buf.remaining().min(self.before.len());
            buf.put_slice(&self.before[..count]);
            self.before.advance(count);
            if self.before.is_empty() {
                // An empty value would keep the memory of the bytes.
                self.before = Bytes::new();
            }
        }
        if buf.filled().len() > already {
            self.activity.read();
            let new = &buf.filled()[already..];
            // A connection with unsent responses must not be evicted for its slow head.
            let is_busy = self.activity.is_busy() || self.activity.stuck_after().is_some();
            if let Some(head_frames) = &mut self.head_frames {
                head_frames.follow(new, is_busy);
            }
            if !self.stopped
                && let Some(at) = self.strict.as_mut().and_then(|strict| strict.check(new))
            {
                buf.filled_mut()[already + at] = WRONG;
                buf.set_filled(already + at + 1);
                self.stopped = true;
                self.before = Bytes::from_static(END);
            }
        } else if self.is_busy() {
            // At an end, hyper would assume that the client has disconnected, and drop the request. hyper reads again
            // after its response, and whenever the connection is polled.
            self.activity.half_closed();
            return Poll::Pending;
        } else {
            self.ended = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper calls this function whenever the connection is polled.
        self.look()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.activity.end();
        if this.strict.is_some() {
            // The tunnel or `client::leave` reads on. A connection that leaves can be evicted, and needs no hyper.
            return Pin::new(&mut this.stream).poll_shutdown(cx);
        }
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        let lingering = this.lingering.get_or_insert_with(LingeringClose::default);
        lingering.poll_over(&mut this.stream, cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    /// The time until the connection closes, if the client sends one byte after each pause.
    async fn closed_after(pause: Duration) -> Duration {
        let (mut client, mut agent) = duplex(64);
        let begun = clock::now();
        let trickle = async {
            loop {
                sleep(pause).await;
                client.write_all(b"x").await.expect("the agent reads");
            }
        };
        let mut lingering = LingeringClose::default();
        tokio::select! {
            () = poll_fn(|cx| lingering.poll_over(&mut agent, cx)) => begun.elapsed(),
            () = trickle => unreachable!("the loop never ends"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_single_bytes_is_not_read_forever() {
        // The timer rounds up to the next millisecond.
        let about = |seconds: u64, measured: Duration| measured.abs_diff(Duration::from_secs(seconds)).as_millis() <= 2;
        assert!(about(2, closed_after(Duration::from_secs(60)).await), "a silent client");
        assert!(about(10, closed_after(Duration::from_millis(1500)).await), "a client that sends single bytes");
    }

    #[tokio::test]
    async fn a_client_that_sends_much_does_not_keep_the_worker_busy() {
        let (mut client, mut agent) = duplex(2 * READ_BUDGET);
        let much = vec![0; 2 * READ_BUDGET];
        client.write_all(&much).await.expect("the agent is connected");
        let mut lingering = LingeringClose::default();
        assert!(poll_fn(|cx| lingering.poll_over(&mut agent, cx)).now_or_never().is_none());
        let room = client.write(&much).now_or_never().expect("room").expect("the agent is connected");
        assert_eq!(room, READ_BUDGET, "the agent has read one piece");
    }
}
