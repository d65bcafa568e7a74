//! The channel between the operator and one agent: one connection, messages in both directions at any time.
//!
//! The operator connects to the agent's control port over mutual TLS and requests the protocol [`ALPN`]. To an agent
//! without certificates, it connects over TCP and sends a hello. Both sides then send frames. A frame has a length, a
//! tag that identifies the kind of message, and the message as JSON of `weir-wire`.
//!
//! | tag | message | from | content |
//! |---|---|---|---|
//! | 0 | hello | operator | empty: the first message on each connection without TLS |
//! | 1 | snapshot | operator | [`weir_wire::Snapshot`]; the agent answers each snapshot with an acknowledgement or a rejection |
//! | 2 | status request | operator | [`weir_wire::StatusRequest`]: the interval at which the agent sends its status |
//! | 3 | answers | operator | [`weir_wire::Answer`]s to questions |
//! | 16 | status | agent | [`weir_wire::Status`]; the first message on each connection, later sent on changes |
//! | 17 | unchanged | agent | empty: the status equals the last status, except for the time |
//! | 18 | acknowledgement | agent | [`weir_wire::ApplyReply`]: the snapshot is in force |
//! | 19 | rejection | agent | [`weir_wire::Rejection`]: the snapshot is not in force, with the reason |
//! | 20 | goodbye | agent | [`weir_wire::Goodbye`]: the agent is about to close the connection |
//! | 21 | questions | agent | [`weir_wire::Question`]s about rules of scope Fleet, or levels that the agent knows |
//! | 22 | levels sent | agent | [`weir_wire::LevelsSent`]: the agent has sent its levels for a new leader |
//!
//! A receiver skips frames with an unknown tag, so later versions can add messages. A change that old receivers must
//! not skip requires another ALPN name.
//!
//! Over TLS, the agent sends the first message. In TLS 1.3, a client learns only from its first read whether the server
//! accepts its certificate. If a client writes before it reads, it may get a reset instead of the reason.
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

/// The first byte of every frame. No HTTP request begins with it, so a port without TLS can serve HTTP, too.
pub const FIRST_BYTE: u8 = 0;

const _: () = assert!(MAX_PAYLOAD_BYTES < 0xff_ffff, "the first byte of a frame's length is 0");
