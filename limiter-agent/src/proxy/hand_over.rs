//! What the two paths for HTTP/1.1, the short path and hyper's path, hand over to each other.

use bytes::Bytes;
use tokio::net::TcpStream;

/// The way in which a path ended.
#[derive(Debug)]
pub(super) enum End {
    /// Another path continues.
    HandOver(HandOver),
    /// Close the connection so that the client gets everything that was sent.
    Leave(TcpStream),
    Closed,
}

/// A connection between two paths.
#[derive(Debug)]
pub(super) struct HandOver {
    pub(super) stream: TcpStream,
    /// Bytes that were read and belong to the next request.
    pub(super) before: Bytes,
    /// Whether the connection has served requests.
    pub(super) used: bool,
    /// Whether the path that ended has served one of them.
    pub(super) served: bool,
}
