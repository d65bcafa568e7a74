//! What can go wrong, for the caller and, by a code, for the peer.

use std::{fmt, io};

/// Why there is no answer, or no connection any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The transport failed.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// The peer closed the connection, or it can carry no more exchanges.
    #[error("it was closed")]
    Closed,
    /// The peer said that it goes away. Nothing is under way any more.
    #[error("it was closed, because of {0}")]
    GoneAway(Reason),
    /// The peer did not begin to work on the request: it may be sent again, over another connection.
    #[error("the request was not taken, because of {0}")]
    NotTaken(Reason),
    /// The peer gave the request up. The connection remains.
    #[error("the request was given up, because of {0}")]
    Reset(Reason),
    /// The peer does not keep to the protocol.
    #[error("it breaks HTTP/2: {0}")]
    Protocol(&'static str),
    /// What was answered is no answer.
    #[error("{0}")]
    Answer(&'static str),
    /// The request cannot be sent by anybody.
    #[error("no such request can be sent: {0}")]
    Request(&'static str),
}

/// An error code (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(u32);

impl Reason {
    /// Nothing went wrong.
    pub const NO_ERROR: Self = Self(0x0);
    /// The protocol was broken.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// A window was overrun, or grew too large.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// A frame on a stream that is closed.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame of a length that it must not have.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The request was not looked at.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// The stream is needed no more.
    pub const CANCEL: Self = Self(0x8);
    /// A head cannot be read.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// Too much was said that is of no use.
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);

    pub(crate) const fn from_code(code: u32) -> Self {
        Self(code)
    }

    pub(crate) const fn code(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0x0 => "NO_ERROR",
            0x1 => "PROTOCOL_ERROR",
            0x2 => "INTERNAL_ERROR",
            0x3 => "FLOW_CONTROL_ERROR",
            0x4 => "SETTINGS_TIMEOUT",
            0x5 => "STREAM_CLOSED",
            0x6 => "FRAME_SIZE_ERROR",
            0x7 => "REFUSED_STREAM",
            0x8 => "CANCEL",
            0x9 => "COMPRESSION_ERROR",
            0xa => "CONNECT_ERROR",
            0xb => "ENHANCE_YOUR_CALM",
            0xc => "INADEQUATE_SECURITY",
            0xd => "HTTP_1_1_REQUIRED",
            unknown => return write!(f, "error {unknown:#x}"),
        };
        f.write_str(name)
    }
}

/// Something that the peer did and that ends the connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// For the peer.
    pub(crate) reason: Reason,
    /// For people.
    pub(crate) what: &'static str,
    /// Whether it is about an answer, and not about the protocol.
    pub(crate) is_answer: bool,
}

impl Fault {
    pub(crate) const fn protocol(what: &'static str) -> Self {
        Self::new(Reason::PROTOCOL_ERROR, what)
    }

    pub(crate) const fn new(reason: Reason, what: &'static str) -> Self {
        Self { reason, what, is_answer: false }
    }

    /// A malformed answer (RFC 9113, section 8.1.1).
    pub(crate) const fn answer(what: &'static str) -> Self {
        Self { reason: Reason::PROTOCOL_ERROR, what, is_answer: true }
    }

    /// An answer that is more than what anybody asked for.
    pub(crate) const fn too_much(what: &'static str) -> Self {
        Self { reason: Reason::ENHANCE_YOUR_CALM, what, is_answer: true }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        if fault.is_answer { Self::Answer(fault.what) } else { Self::Protocol(fault.what) }
    }
}
