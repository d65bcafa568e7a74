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
    /// Another path continues, with these bytes first. The flag is true if the connection has served requests.
    HandOver(TcpStream, Bytes, bool),
    /// Close the connection so that the client gets everything that was sent.
    Leave(TcpStream),
    Closed,
}
