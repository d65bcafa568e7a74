//! WebSocket connections (RFC 6455) whose messages are counted.
//!
//! A rule with `per: Message` decides once for each text or binary message of the client, as soon as the header of its
//! first frame arrives. A refused message does not reach the app. The client gets a notice instead, or the connection
//! closes. Frames are streamed: the agent never buffers a whole message, and forwards bytes unchanged, still masked by
//! the client. Ping, pong and close pass without being counted.
//!
//! Such a connection must not use extensions, so [`handshake::offer_no_extensions`] removes the offer from the opening
//! request. The main reason is `permessage-deflate`: both sides share one compression window over all messages. If the
//! agent drops a message, the app's window lacks data that later messages refer to. The agent copies connections
//! without such a rule, and does not parse them. They can use any extension.
//!
//! WebSocket over HTTP/2 (RFC 8441) is not supported. It needs extended CONNECT, which this proxy refuses. A client
//! that does not receive `SETTINGS_ENABLE_CONNECT_PROTOCOL` opens an HTTP/1.1 connection.
//!
//! [`frame`], [`client`] and [`app`] work on bytes in memory. Only [`relay`] does I/O.

pub(super) use self::relay::relay;

mod app;
mod between;
mod client;
mod frame;
#[cfg(test)]
mod fuzz;
pub(super) mod handshake;
mod relay;
