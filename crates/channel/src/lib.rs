//! The channel between the operator and one agent: one connection, messages in both directions at any time.
//!
//! The operator connects to the agent's control port over mutual TLS and requests the protocol [`ALPN`]. Both sides
//! then send frames. A frame has a length, a tag that identifies the kind of message, and the message as JSON of
//! `weir-wire`.
//!
//! | tag | message | from | content |
//! |---|---|---|---|
//! | 1 | snapshot | operator | [`weir_wire::Snapshot`]; the agent answers each snapshot with an acknowledgement or a rejection |
//! | 2 | status request | operator | [`weir_wire::StatusRequest`]: the interval at which the agent sends its status |
//! | 16 | status | agent | [`weir_wire::Status`]; the first message on each connection, later sent on changes |
//! | 17 | unchanged | agent | empty: the status equals the last status, except for the time |
//! | 18 | acknowledgement | agent | [`weir_wire::ApplyReply`]: the snapshot is in force |
//! | 19 | rejection | agent | [`weir_wire::Rejection`]: the snapshot is not in force, with the reason |
//! | 20 | goodbye | agent | [`weir_wire::Goodbye`]: the agent is about to close the connection |
//!
//! A receiver skips frames with an unknown tag, so later versions can add messages. A change that old receivers must
//! not skip requires another ALPN name.
//!
//! The agent sends the first message. In TLS 1.3, a client learns only from its first read whether the server accepts
//! its certificate. If a client writes before it reads, it possibly gets a reset instead of the reason.
//!
//! This crate opens no socket and contains no TLS. [`Channel`] works on any stream.

mod channel;
mod frame;
mod message;

pub use self::{
    channel::{Channel, ChannelError},
    frame::{Decoder, Frame, InvalidFrame, MAX_PAYLOAD_BYTES, Outgoing},
    message::{InvalidMessage, ToAgent, ToOperator, snapshot, tag},
};

/// The protocol's name in the TLS handshake (ALPN), with its version.
pub const ALPN: &[u8] = b"weir/1";
