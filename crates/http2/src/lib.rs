//! An HTTP/2 client for thousands of connections that are mostly at rest.
//!
//! The operator holds a connection to each agent for hours, and asks each a short question now and then. A general client
//! keeps buffers, tables and queues ready for streams that never come: tens of kilobytes a connection. This one has one
//! exchange at a time, and all that an exchange needs is given back with its answer. It has no task of its own: bytes move
//! while somebody waits for an answer ([`Connection::send`]) or for the end ([`Connection::closed`]). An answer may also be
//! read as it comes, for as long as the peer goes on ([`Connection::begin`]): thousands of such wait at no greater expense.
//!
//! The peer is not trusted: heads and bodies are bounded, and so is what may be said that answers nothing. The first
//! thing that breaks the protocol ends the connection, where RFC 9113 would let a client give up no more than the stream
//! (section 5.4.1 allows it).
//!
//! [`Codec`] is the protocol without a transport: bytes in, bytes out. Heads are read with a dynamic table of no entries
//! (RFC 7541, section 4.2), and written without one.
//!
//! It never opens connections, never tries again, and never reads a clock: time limits are the caller's.

mod codec;
mod connection;
mod error;
mod exchange;
mod frame;
mod head;
mod hpack;
mod settings;
mod window;

pub use codec::Codec;
pub use connection::Connection;
pub use error::{Error, Reason};
pub use exchange::Request;

/// The longest head of an answer, as RFC 9113, section 6.5.2 counts it; and so long it may be on the wire.
pub const MAX_HEAD_BYTES: u32 = 16 * 1024;
/// The longest body of an answer.
pub const MAX_BODY_BYTES: u32 = 1024 * 1024;
