//! The connection over which a response arrives.

use super::{pool::PooledConnection, streams::Stream};

/// The connection or stream of a response, until the response has ended.
#[derive(Debug)]
pub(super) enum UpstreamConnection {
    Http1(PooledConnection),
    /// Held so that the stream counts as open.
    Http2(Stream),
}

impl UpstreamConnection {
    /// Returns the connection to its pool. Call this function when the response was read to its end.
    pub(super) fn give_back(self) {
        match self {
            Self::Http1(connection) => connection.give_back(),
            Self::Http2(_stream) => {}
        }
    }
}
