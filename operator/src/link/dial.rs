//! Opens the connection of a link: the channel over mutual TLS, or without TLS for agents without certificates.
//!
//! The process at a pod's address may be broken or hostile, so its messages are bounded and parsed strictly. Over TLS,
//! a link accepts only the agent of its pod. Each connection belongs to one link and one pod, so it is never used for
//! another pod that later gets the same address.

use std::{sync::Arc, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::either::Either;
use weir_channel::{ALPN, Channel, ChannelError, Outgoing, ToAgent, ToOperator};

use super::{
    ContactError,
    dial_error::{DialError, is_silence},
    trust,
};
use crate::{authority::validity, dialing::Held, identity::Peer, plan::Content, wording::chain};

/// The time for which a host can be silent before the kernel probes it, and the interval of the probes.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;
/// The time after which the kernel ends a connection if the agent's kernel does not acknowledge what was sent.
pub(super) const UNACKNOWLEDGED: Duration = KEEPALIVE.saturating_mul(1 + KEEPALIVE_PROBES);

#[derive(Clone, Debug)]
pub(super) struct Dial {
    address: Arc<str>,
    security: Security,
}

/// The way in which an agent proves its identity.
#[derive(Clone, Debug)]
enum Security {
    /// The agent does not prove its identity.
    Plain,
    /// The agent proves its identity by its certificate.
    Mutual { peer: Peer, credentials: Option<Held> },
}

/// An open connection. Dropping it closes the connection.
///
/// The channel is boxed before it becomes part of a future, because nested futures would store it several times.
#[derive(Debug)]
pub(super) struct Connection(Box<Channel<Either<TlsStream<TcpStream>, TcpStream>>>);

/// A connection, and the agent's first message.
#[derive(Debug)]
pub(super) struct Dialed {
    pub(super) connection: Connection,
    /// The time at which the connection's certificates expire, in seconds of Unix time.
    pub(super) not_after: u64,
    pub(super) greeting: ToOperator,
}

impl Dial {
    /// Returns a dialer for the agent at `url`. With `http`, the agent proves nothing. With `https`, it must prove to
    /// be `peer`.
    pub(super) fn new(url: &str, peer: impl Into<Peer>, credentials: Option<Held>) -> Self {
        let (security, address) = match url.split_once("://") {
            Some(("https", address)) => (Security::Mutual { peer: peer.into(), credentials }, address),
            Some((_, address)) => (Security::Plain, address),
            None => (Security::Plain, url),
        };
        Self { address: address.into(), security }
    }

    /// Opens a connection and waits for the agent's first message.
    ///
    /// # Errors
    ///
    /// Opening TCP takes longer than `limit`, or the rest does, or the peer is not the agent.
    pub(super) async fn connect(self, limit: Duration) -> Result<Dialed, ContactError> {
        let stream = self.reach(limit).await?;
        self.greet(stream, limit).await
    }

    /// Opens TCP to the agent.
    ///
    /// # Errors
    ///
    /// The connection is not open within `limit`.
    pub(super) async fn reach(&self, limit: Duration) -> Result<TcpStream, ContactError> {
        self.in_time(limit, self.tcp()).await
    }

    /// Opens the channel on a connection to the agent, and waits for the agent's first message.
    ///
    /// # Errors
    ///
    /// The message does not arrive within `limit`, or the peer is not the agent.
    pub(super) async fn greet(&self, stream: TcpStream, limit: Duration) -> Result<Dialed, ContactError> {
        self.in_time(limit, self.open(stream, limit)).await
    }

    async fn in_time<T>(
        &self,
        limit: Duration,
        step: impl Future<Output = Result<T, DialError>>,
    ) -> Result<T, ContactError> {
        match timeout(limit, step).await {
            Ok(outcome) => outcome.map_err(|error| self.contact_error(error)),
            Err(_) => Err(ContactError::Timeout(limit)),
        }
    }

    async fn open(&self, stream: TcpStream, limit: Duration) -> Result<Dialed, DialError> {
        let (mut channel, not_after) = match &self.security {
            Security::Plain => {
                let mut channel = Box::new(Channel::new(Either::Right(stream)));
                // The agent serves HTTP on the same port. The first byte of a frame selects the channel.
                let hello = ToAgent::Hello.frame().expect("an empty frame is short");
                channel.send(hello, limit).await.map_err(DialError::Channel)?;
                (channel, u64::MAX)
            }
            Security::Mutual { peer, credentials } => {
                let credentials = credentials.as_ref().and_then(|held| held.borrow().clone());
                let credentials = credentials.ok_or(DialError::NoCertificate)?;
                let name = peer.server_name().map_err(DialError::Name)?;
                let connector = TlsConnector::from(credentials.client.clone());
                let stream = connector.connect(name, stream).await.map_err(DialError::Tls)?;
                let (_, session) = stream.get_ref();
                if session.alpn_protocol() != Some(ALPN) {
                    return Err(DialError::NoChannel);
                }
                let shown = session.peer_certificates().and_then(<[_]>::first).and_then(|shown| validity(shown));
                let not_after = shown.map_or(credentials.not_after, |shown| shown.end.min(credentials.not_after));
                // The agent sends the first message. So the operator can read the reason if the agent does not accept
                // its certificate.
                (Box::new(Channel::new(Either::Left(stream))), not_after)
            }
        };
        let greeting = channel.next().await.and_then(|frame| Ok(ToOperator::parse(&frame)?));
        let greeting = greeting.map_err(DialError::Channel)?;
        Ok(Dialed { connection: Connection(channel), not_after, greeting })
    }

    async fn tcp(&self) -> Result<TcpStream, DialError> {
        let failed = |source| DialError::Connect { address: self.address.clone(), source };
        let stream = TcpStream::connect(&*self.address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        // TCP keepalive detects a pod that vanished, even if no data is being sent.
        let keepalive =
            TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(KEEPALIVE_PROBES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(failed)?;
        SockRef::from(&stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED)).map_err(failed)?;
        Ok(stream)
    }

    /// Explains the error in words for the user who has to fix it.
    fn contact_error(&self, error: DialError) -> ContactError {
        let explained = match &self.security {
            Security::Mutual { peer, .. } => trust::explain(&error, peer),
            Security::Plain => trust::explain_plain(&error),
        };
        match (explained, error) {
            (Some(explained), _) => ContactError::Untrusted(explained),
            (None, error @ DialError::Channel(ChannelError::Frame(_) | ChannelError::Message(_))) => {
                ContactError::Garbage(chain(&error))
            }
            (None, error) => ContactError::Connection(chain(&error)),
        }
    }
}

impl Connection {
    /// Waits for the agent's next message. Cancel safe.
    ///
    /// # Errors
    ///
    /// The connection can no longer be used.
    pub(super) async fn next(&mut self) -> Result<ToOperator, ContactError> {
        let frame = self.0.next().await.map_err(contact_error)?;
        ToOperator::parse(&frame).map_err(|error| contact_error(error.into()))
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// The agent did not read the message within `limit`.
    pub(super) async fn send(&mut self, message: ToAgent, limit: Duration) -> Result<(), ContactError> {
        self.send_frame(message.frame(), limit).await
    }

    /// Sends a snapshot. All agents with the same content share its bytes.
    ///
    /// # Errors
    ///
    /// The agent did not read the message within `limit`.
    pub(super) async fn push(&mut self, content: &Content, sequence: u64, limit: Duration) -> Result<(), ContactError> {
        let (start, shared) = content.snapshot(sequence);
        self.send_frame(weir_channel::snapshot(&start, shared), limit).await
    }

    async fn send_frame(&mut self, frame: Option<Outgoing>, limit: Duration) -> Result<(), ContactError> {
        let frame =
            frame.ok_or_else(|| ContactError::Connection("the content is too long for a message".to_owned()))?;
        self.0.send(frame, limit).await.map_err(contact_error)
    }
}

/// Returns the reason why an open connection ended.
fn contact_error(error: ChannelError) -> ContactError {
    match error {
        ChannelError::Closed => ContactError::Closed { is_silent: false },
        ChannelError::Io(error) => ContactError::Closed { is_silent: is_silence(&error) },
        ChannelError::Stuck(limit) => ContactError::Timeout(limit),
        ChannelError::Frame(_) | ChannelError::Message(_) | ChannelError::Incomplete => {
            ContactError::Garbage(error.to_string())
        }
    }
}

#[cfg(test)]
#[path = "dial_tests.rs"]
pub(super) mod tests;
