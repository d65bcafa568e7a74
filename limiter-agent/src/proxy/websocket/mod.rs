//! WebSocket connections (RFC 6455) whose messages are counted.
//!
//! A rule per message is asked once for each text or binary message that the client sends, when the header of its first
//! frame is there. A message that is refused does not reach the app: the client is sent a notice instead, or the connection
//! is closed. Frames stream through as they come: no message is ever held as a whole, whatever its length, and bytes that
//! pass are passed as they came, still masked by the client. Ping, pong and close pass uncounted.
//!
//! No extension may be in use on such a connection, so [`handshake::is_plain`] takes the offer away from the opening
//! request. `permessage-deflate` above all: both sides share one compression window over all messages, and a message that is
//! dropped on the way would leave the app's window without what the next ones refer to. Connections without a rule per
//! message are copied blindly and may use any.
//!
//! WebSocket over HTTP/2 (RFC 8441) is not offered: it needs extended CONNECT, which this proxy refuses, and a client
//! that is not told of it by `SETTINGS_ENABLE_CONNECT_PROTOCOL` opens a connection of HTTP/1.1.
//!
//! [`frame`], [`client`] and [`app`] are about bytes in memory: nothing there reads, writes or waits. [`relay`]
//! does.

use weir_enforce::{MessageRefusal, Messages};

mod app;
mod between;
mod client;
mod frame;
#[cfg(test)]
mod fuzz;
pub(super) mod handshake;
mod relay;

pub(super) use self::relay::relay;

/// Asked for each message of one connection.
pub(super) trait Decide {
    /// Charges for one message, or says why it must not pass.
    fn decide(&self) -> Result<(), MessageRefusal>;
}

impl Decide for Messages {
    fn decide(&self) -> Result<(), MessageRefusal> {
        Self::decide(self)
    }
}
