//! WebSocket connections (RFC 6455) whose messages are counted.
//!
//! A rule per message decides once for each text or binary message of the client, as soon as the header of its first
//! frame arrives. A refused message does not reach the app; the client gets a notice instead, or the connection
//! closes. Frames stream through: the agent never buffers a whole message, whatever its length, and passes bytes
//! unchanged, still masked by the client. Ping, pong and close pass without being counted.
//!
//! Such a connection must not use extensions, so [`handshake::is_plain`] removes the offer from the opening request.
//! The main reason is `permessage-deflate`: both sides share one compression window over all messages. If the agent
//! drops a message, the app's window lacks data that later messages refer to. Connections without a rule per message
//! are copied without parsing and may use any extension.
//!
//! WebSocket over HTTP/2 (RFC 8441) is not supported. It needs extended CONNECT, which this proxy refuses. A client
//! that does not see `SETTINGS_ENABLE_CONNECT_PROTOCOL` opens an HTTP/1.1 connection.
//!
//! [`frame`], [`client`] and [`app`] work on bytes in memory and do no I/O. [`relay`] does.

use weir_enforce::{MessageRefusal, Messages};

pub(super) use self::relay::relay;

mod app;
mod between;
mod client;
mod frame;
#[cfg(test)]
mod fuzz;
pub(super) mod handshake;
mod relay;

/// Decides on each message of one connection.
pub(super) trait Decide {
    /// Charges for one message, or returns why it is refused.
    fn decide(&self) -> Result<(), MessageRefusal>;
}

impl Decide for Messages {
    fn decide(&self) -> Result<(), MessageRefusal> {
        Self::decide(self)
    }
}
