//! What a response needs to arrive from the app.

use super::{pool::PooledConnection, streams::Stream};

/// The connection or stream of a response, for as long as it is needed.
#[derive(Debug)]
pub(super) enum UpstreamConnection {
    Http1(PooledConnection),
    /// Held so that the stream counts as open.
    Http2(Stream),
}

impl UpstreamConnection {
    /// Call it once the response was read to its end.
    pub(super) fn give_back(self) {
        match self {
            Self::Http1(connection) => connection.give_back(),
            Self::Http2(_stream) => {}
        }
    }
}
