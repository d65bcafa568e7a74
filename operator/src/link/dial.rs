//! Opens the connection of a link: the channel over mutual TLS, or plain HTTP.
//!
//! The process at a pod's address may be broken or hostile, so its messages are bounded and parsed strictly. Over TLS,
//! a link accepts only the agent of its pod. Each connection belongs to one link and one pod, so it is never used for
//! another pod that later gets the same address.

use std::{sync::Arc, time::Duration};

use socket2::{SockRef, TcpKeepalive};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use weir_channel::{ALPN, Channel, ChannelError, Outgoing, ToAgent, ToOperator};
use weir_wire::{Answer, StatusRequest};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{
    ContactError,
    dial_error::{DialError, chain, is_silence},
    http::Http,
    trust,
};
use crate::{calling::Held, identity::Peer, plan::Content};

/// The time for which a host can be silent before the kernel probes it, and the interval of the probes.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;

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
#[derive(Debug)]
pub(super) enum Connection {
    /// The channel is boxed before it becomes part of a future, because nested futures would store it several times.
    Mutual(Box<Channel<TlsStream<TcpStream>>>),
    Plain(Box<Http>),
}

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
    /// The connection is not open within `limit`, or the peer is not the agent.
    pub(super) async fn connect(self, limit: Duration) -> Result<Dialed, ContactError> {
        match timeout(limit, self.open(limit)).await {
            Ok(opened) => opened.map_err(|error| self.contact_error(error)),
            Err(_) => Err(ContactError::Timeout(limit)),
        }
    }

    async fn open(&self, limit: Duration) -> Result<Dialed, DialError> {
        match &self.security {
            Security::Plain => {
                let stream = self.tcp().await?;
                let (http, greeting) = Http::connect(stream, self.address.clone(), limit).await?;
                Ok(Dialed { connection: Connection::Plain(Box::new(http)), not_after: u64::MAX, greeting })
            }
            Security::Mutual { peer, credentials } => {
                let credentials = credentials.as_ref().and_then(|held| held.borrow().clone());
                let credentials = credentials.ok_or(DialError::NoCertificate)?;
                let name = peer.server_name().map_err(DialError::Name)?;
                let connector = TlsConnector::from(credentials.client.clone());
                let stream = connector.connect(name, self.tcp().await?).await.map_err(DialError::Tls)?;
                let (_, session) = stream.get_ref();
                if session.alpn_protocol() != Some(ALPN) {
                    return Err(DialError::NoChannel);
                }
                let shown = session.peer_certificates().and_then(<[_]>::first).and_then(|shown| not_after(shown));
                let not_after = shown.map_or(credentials.not_after, |shown| shown.min(credentials.not_after));
                let mut channel = Box::new(Channel::new(stream));
                // The agent sends the first message. So the operator can read the reason if the agent does not accept
                // its certificate.
                let greeting = channel.next().await.and_then(|frame| Ok(ToOperator::parse(&frame)?));
                let greeting = greeting.map_err(DialError::Channel)?;
                Ok(Dialed { connection: Connection::Mutual(channel), not_after, greeting })
            }
        }
    }

    async fn tcp(&self) -> Result<TcpStream, DialError> {
        let failed = |source| DialError::Connect { address: self.address.clone(), source };
        let stream = TcpStream::connect(&*self.address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        // TCP keepalive detects a pod that vanished, even if no data is being sent.
        let keepalive =
            TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(KEEPALIVE_PROBES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(failed)?;
        let unacknowledged = KEEPALIVE * (1 + KEEPALIVE_PROBES);
        SockRef::from(&stream).set_tcp_user_timeout(Some(unacknowledged)).map_err(failed)?;
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
            (None, DialError::Answer(error)) => error,
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
        match self {
            Self::Mutual(channel) => {
                let frame = channel.next().await.map_err(contact_error)?;
                ToOperator::parse(&frame).map_err(|error| contact_error(error.into()))
            }
            Self::Plain(http) => http.next().await,
        }
    }

    /// Requests the agent's status at this interval.
    ///
    /// # Errors
    ///
    /// The agent did not read the message within `limit`.
    pub(super) async fn request_status(&mut self, every: Duration, limit: Duration) -> Result<(), ContactError> {
        match self {
            Self::Mutual(channel) => {
                let every_millis = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
                send(channel, ToAgent::StatusRequest(StatusRequest { every_millis }).frame(), limit).await
            }
            Self::Plain(http) => {
                http.request_status(every);
                Ok(())
            }
        }
    }

    /// Sends answers to questions. Plain HTTP carries none.
    ///
    /// # Errors
    ///
    /// The agent did not read the message within `limit`.
    pub(super) async fn answer(&mut self, answers: Vec<Answer>, limit: Duration) -> Result<(), ContactError> {
        match self {
            Self::Mutual(channel) => send(channel, ToAgent::Answers(answers).frame(), limit).await,
            Self::Plain(_) => Ok(()),
        }
    }

    /// Returns true if the connection can carry questions.
    pub(super) fn is_channel(&self) -> bool {
        matches!(self, Self::Mutual(_))
    }

    /// Sends a snapshot. All agents with the same content share its bytes.
    ///
    /// # Errors
    ///
    /// The agent did not read the message within `limit`.
    pub(super) async fn push(&mut self, content: &Content, sequence: u64, limit: Duration) -> Result<(), ContactError> {
        match self {
            Self::Mutual(channel) => {
                let (start, shared) = content.snapshot(sequence);
                send(channel, weir_channel::snapshot(&start, shared), limit).await
            }
            Self::Plain(http) => {
                http.push(content.body(sequence).into());
                Ok(())
            }
        }
    }
}

async fn send(
    channel: &mut Channel<TlsStream<TcpStream>>,
    frame: Option<Outgoing>,
    limit: Duration,
) -> Result<(), ContactError> {
    let frame = frame.ok_or_else(|| ContactError::Connection("the content is too long for a message".to_owned()))?;
    channel.send(frame, limit).await.map_err(contact_error)
}

/// Returns the reason why an open connection ended.
fn contact_error(error: ChannelError) -> ContactError {
    match error {
        ChannelError::Closed => ContactError::Closed { is_silent: false },
        ChannelError::Io(error) => ContactError::Closed { is_silent: is_silence(&error) },
        ChannelError::Stuck(limit) => ContactError::Timeout(limit),
        ChannelError::Frame(_) | ChannelError::Message(_) => ContactError::Garbage(error.to_string()),
    }
}

fn not_after(certificate: &[u8]) -> Option<u64> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    u64::try_from(certificate.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
#[path = "dial_tests.rs"]
pub(super) mod tests;
