//! TLS over a transport, as [`Session`] speaks it.
//!
//! There is one such connection for each of thousands of agents, and nearly all of them are at rest: so a connection owns
//! memory only for bytes that are on their way. Where nothing can be sent, no more is taken than [`MAX_WRITE_BYTES`].
//!
//! It says nothing when it is dropped: only [`AsyncWrite::poll_shutdown`] tells the peer that nothing more comes.

mod session;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use session::{End, Session};

/// What is read at a time. It is on the stack: nothing is kept for what may come.
const READ_BYTES: usize = 8 * 1024;
/// What is encrypted at a time, and sent at once.
const MAX_WRITE_BYTES: usize = 64 * 1024;

/// An open connection. What it tells of TLS that fails is an [`io::Error`] with a [`rustls::Error`] in it.
pub(super) struct TlsStream<T> {
    transport: T,
    session: Session,
}

impl<T> fmt::Debug for TlsStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").finish_non_exhaustive()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> TlsStream<T> {
    /// With a peer that proves to be `name`, over a transport on which nothing was sent yet.
    ///
    /// # Errors
    ///
    /// If that fails, or the peer hangs up before ([`io::ErrorKind::UnexpectedEof`]).
    pub(super) async fn connect(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        transport: T,
    ) -> io::Result<Self> {
        let session = Session::new(config, name).map_err(io::Error::other)?;
        let mut stream = Self { transport, session };
        poll_fn(|context| stream.poll_handshake(context)).await?;
        Ok(stream)
    }

    /// What the peer has proven to be.
    pub(super) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.session.certificate()
    }

    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let sent = Pin::new(&mut *self).poll_flush(context);
            if !self.session.is_handshaking() {
                return sent;
            }
            // Even if nothing can be sent: a peer that does not read may have said why.
            match (self.poll_receive(context), sent) {
                (Poll::Ready(Ok(())), _) => {}
                (Poll::Ready(Err(error)), _) | (Poll::Pending, Poll::Ready(Err(error))) => {
                    return Poll::Ready(Err(error));
                }
                (Poll::Pending, _) => return Poll::Pending,
            }
        }
    }

    /// Reads once from the transport.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(end) = self.session.end() {
            return Poll::Ready(Err(told(end, self.session.is_handshaking())));
        }
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let room = self.session.room().min(READ_BYTES);
        let mut space = ReadBuf::uninit(&mut space[..room]);
        ready!(Pin::new(&mut self.transport).poll_read(context, &mut space))?;
        if space.filled().is_empty() {
            self.session.receive_end();
        } else {
            self.session.receive(space.filled_mut());
        }
        if let Some(End::Broken(_)) = self.session.end() {
            // The peer may hear what it did wrong; nobody waits for that.
            let _ = self.poll_send(context);
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what is to be sent.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.session.outgoing.rest().is_empty() {
            let bytes = self.session.outgoing.rest();
            let sent = ready!(Pin::new(&mut self.transport).poll_write(context, bytes))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.session.outgoing.take(sent);
        }
        Poll::Ready(Ok(()))
    }
}

/// An end, as the reader sees it.
fn told(end: &End, is_handshaking: bool) -> io::Error {
    match end {
        End::Broken(error) => io::Error::new(io::ErrorKind::InvalidData, error.clone()),
        End::Closed | End::CutOff if is_handshaking => {
            io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof")
        }
        End::Closed | End::CutOff => {
            io::Error::new(io::ErrorKind::UnexpectedEof, "peer closed connection without sending TLS close_notify")
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let plain = this.session.plain.rest();
            let count = plain.len().min(buffer.remaining());
            buffer.put_slice(&plain[..count]);
            this.session.plain.take(count);
            if count > 0 || buffer.remaining() == 0 || this.session.end() == Some(&End::Closed) {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_receive(context))?;
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.session.is_closed() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // So no more than once that much waits to be sent.
        ready!(this.poll_send(context))?;
        let bytes = &bytes[..bytes.len().min(MAX_WRITE_BYTES)];
        this.session.send(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        // They are taken, whether or not they are under way.
        let _ = this.poll_send(context)?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.transport).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.session.close();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.transport).poll_shutdown(context)
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
