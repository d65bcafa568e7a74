//! The interface of the two paths for HTTP/1.1: the short path and hyper's path.

use bytes::Bytes;
use tokio::net::TcpStream;

/// Serves the HTTP/1.1 requests of one client connection.
pub(super) trait Http1Path {
    /// Serves requests until this path ends. The bytes in `before`, and then those on the socket, belong to the first
    /// request. `used` is true if the connection has served requests before.
    fn serve(&self, stream: TcpStream, before: Bytes, used: bool) -> impl Future<Output = End>;
}

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
