//! The client's side of TLS without a transport: bytes in, bytes out.
//!
//! At rest it holds no buffers: of what came only a record is kept of which the rest is missing, and what is made to be sent
//! is dropped once it was taken.

use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
};
use rustls::{ClientConfig, Error, InvalidMessage};

/// The longest record, encrypted and with its head (RFC 8446, section 5.2, and what TLS 1.2 allowed).
pub(super) const MAX_RECORD_BYTES: usize = 5 + 16 * 1024 + 2048;
/// A message of the handshake, such as a chain of certificates, may be in several records: so much with their heads.
pub(super) const MAX_HANDSHAKE_BYTES: usize = 64 * 1024;

/// One connection's TLS, and the bytes that are on their way through it.
pub(super) struct Session {
    tls: UnbufferedClientConnection,
    /// Came, and cannot be read before more does.
    incoming: Vec<u8>,
    /// Was read, and nobody has taken it yet.
    pub(super) plain: Queue,
    /// To be sent.
    pub(super) outgoing: Queue,
    end: Option<End>,
    /// Nothing more is to be sent.
    is_closed: bool,
}

/// Why nothing more is read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// The peer said that it has nothing more to say.
    Closed,
    /// The transport ended, and the peer had not said so: somebody else may have cut off the rest.
    CutOff,
    /// What came is no TLS, not the peer's, or something that the peer does not want.
    Broken(Error),
}

/// What to do once something may be sent.
enum Purpose<'a> {
    Nothing,
    Send(&'a [u8]),
    Close,
}

impl Session {
    /// For a peer with a certificate for `name`. The first bytes are to be sent at once.
    ///
    /// # Errors
    ///
    /// If this configuration allows no connection at all.
    pub(super) fn new(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Error> {
        let mut session = Self {
            tls: UnbufferedClientConnection::new(config, name)?,
            incoming: Vec::new(),
            plain: Queue::default(),
            outgoing: Queue::default(),
            end: None,
            is_closed: false,
        };
        session.advance(&Purpose::Nothing)?;
        Ok(session)
    }

    /// Whether it is not known yet who the peer is.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Why nothing more is read, once that is so and all was taken from `plain`.
    pub(super) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// What the peer has proven to be.
    pub(super) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.peer_certificates()?.first()
    }

    /// How many bytes are taken at a time; at least one.
    pub(super) fn room(&self) -> usize {
        self.most().saturating_sub(self.incoming.len()).max(1)
    }

    /// Takes bytes that came, in pieces of any length, and decrypts them where they are. If they are no good, the peer is told so by what is left to be sent,
    /// and nothing more is taken.
    pub(super) fn receive(&mut self, bytes: &mut [u8]) {
        if self.end.is_some() {
            return;
        }
        let advanced = if self.incoming.is_empty() {
            self.advance_through(bytes)
        } else {
            self.incoming.extend_from_slice(bytes);
            self.advance(&Purpose::Nothing)
        };
        // All records that are whole were read: what is left of so many belongs to one message.
        let is_endless = self.incoming.len() >= self.most();
        if let Err(error) = advanced {
            self.break_off(error);
        } else if is_endless {
            self.break_off(Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge));
        }
    }

    /// The transport has ended: nothing more comes. What was cut off stays: TLS knows places in it.
    pub(super) fn receive_end(&mut self) {
        self.end.get_or_insert(End::CutOff);
    }

    /// Encrypts what is to be sent.
    ///
    /// # Errors
    ///
    /// The one that broke the connection. Nothing can be sent over it any more.
    pub(super) fn send(&mut self, plain: &[u8]) -> Result<(), Error> {
        if let Some(End::Broken(error)) = &self.end {
            return Err(error.clone());
        }
        self.advance(&Purpose::Send(plain)).inspect_err(|error| self.break_off(error.clone()))
    }

    /// Says that nothing more will be sent.
    pub(super) fn close(&mut self) {
        let is_closed = std::mem::replace(&mut self.is_closed, true);
        if is_closed || matches!(self.end, Some(End::Broken(_))) {
            return;
        }
        if let Err(error) = self.advance(&Purpose::Close) {
            self.break_off(error);
        }
    }

    /// Whether it was said that nothing more will be sent.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn most(&self) -> usize {
        if self.is_handshaking() { MAX_HANDSHAKE_BYTES } else { MAX_RECORD_BYTES }
    }

    /// Reads what is there, until more must come.
    fn advance(&mut self, purpose: &Purpose<'_>) -> Result<(), Error> {
        let mut incoming = std::mem::take(&mut self.incoming);
        let used = self.read(&mut incoming, purpose)?;
        if used < incoming.len() {
            if used > 0 {
                incoming.drain(..used);
                incoming.shrink_to_fit();
            }
            self.incoming = incoming;
        }
        Ok(())
    }

    /// The same with bytes that came when there was nothing: mostly whole records.
    fn advance_through(&mut self, came: &mut [u8]) -> Result<(), Error> {
        let used = self.read(came, &Purpose::Nothing)?;
        self.incoming = came[used..].to_vec();
        Ok(())
    }

    /// Reads these bytes, until more must come: how many are needed no more.
    fn read(&mut self, incoming: &mut [u8], purpose: &Purpose<'_>) -> Result<usize, Error> {
        let mut used = 0;
        loop {
            let UnbufferedStatus { discard, state } = self.tls.process_tls_records(&mut incoming[used..]);
            used += discard;
            match state? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record?;
                        used += record.discard;
                        self.plain.bytes.extend_from_slice(record.payload);
                    }
                }
                ConnectionState::EncodeTlsData(mut message) => {
                    encode(&mut message, &mut self.outgoing)?;
                }
                // It is sent in its turn.
                ConnectionState::TransmitTlsData(message) => message.done(),
                ConnectionState::PeerClosed => self.end = Some(End::Closed),
                ConnectionState::WriteTraffic(traffic) => {
                    write(traffic, purpose, &mut self.outgoing)?;
                    break;
                }
                ConnectionState::BlockedHandshake | ConnectionState::Closed => break,
                other => return Err(Error::General(format!("a client in an unknown state: {other:?}"))),
            }
        }
        // What comes after the peer's end is nothing.
        Ok(if self.end == Some(End::Closed) { incoming.len() } else { used })
    }

    /// Nothing is read or sent any more, but for what the peer is to hear of the error.
    fn break_off(&mut self, error: Error) {
        self.end = Some(End::Broken(error));
        self.incoming = Vec::new();
        // It must not look at bytes again: only at what it wants to say.
        while self.tls.wants_write() {
            let UnbufferedStatus { state: Ok(ConnectionState::EncodeTlsData(mut message)), .. } =
                self.tls.process_tls_records(&mut [])
            else {
                return;
            };
            if encode(&mut message, &mut self.outgoing).is_err() {
                return;
            }
        }
    }
}

fn write(
    mut traffic: WriteTraffic<'_, ClientConnectionData>,
    purpose: &Purpose<'_>,
    outgoing: &mut Queue,
) -> Result<(), Error> {
    match purpose {
        Purpose::Nothing => Ok(()),
        Purpose::Send(plain) => outgoing.append(|space| traffic.encrypt(plain, space)),
        Purpose::Close => outgoing.append(|space| traffic.queue_close_notify(space)),
    }
}

fn encode(message: &mut EncodeTlsData<'_, ClientConnectionData>, outgoing: &mut Queue) -> Result<(), Error> {
    outgoing.append(|space| {
        message.encode(space).map_err(|error| match error {
            EncodeError::InsufficientSize(size) => EncryptError::InsufficientSize(size),
            EncodeError::AlreadyEncoded => EncryptError::EncryptExhausted,
        })
    })
}

/// Bytes that are taken from the front. It holds no memory when it is empty.
#[derive(Debug, Default)]
pub(super) struct Queue {
    bytes: Vec<u8>,
    taken: usize,
}

impl Queue {
    /// What was not taken yet.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// So many bytes were taken.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        if self.taken >= self.bytes.len() {
            *self = Self::default();
        }
    }

    /// Appends what `write` makes, which says how much space it needs if there is too little.
    fn append(&mut self, mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>) -> Result<(), Error> {
        let start = self.bytes.len();
        let mut space = 0;
        loop {
            self.bytes.resize(start + space, 0);
            match write(&mut self.bytes[start..]) {
                Ok(written) => {
                    self.bytes.truncate(start + written);
                    return Ok(());
                }
                Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size }))
                    if required_size > space =>
                {
                    space = required_size;
                }
                Err(_) => {
                    self.bytes.truncate(start);
                    return Err(Error::EncryptError);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
