//! One attempt to connect to the app.

use std::{io, net::SocketAddr, time::Duration};

use socket2::SockRef;
use tokio::{net::TcpStream, time::timeout};

use crate::open_files::{is_exhausted, is_short_for_app};

/// The time limit for connecting to the app.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The bytes of a connection that wait in the kernel and are not sent. The app gets the next part of an upload as soon as
/// it has read as much.
const UNSENT: u32 = 128 * 1024;

/// Connecting to the app failed.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum ConnectError {
    #[error("cannot connect to the app at {0}: {1}")]
    Refused(SocketAddr, io::Error),
    #[error("the agent has no free file descriptor for a connection to the app at {0}")]
    NoDescriptor(SocketAddr),
    #[error("the app at {0} did not accept a connection within {CONNECT_TIMEOUT:?}")]
    TimedOut(SocketAddr),
    #[error("cannot speak HTTP with the app at {0}: {1}")]
    Handshake(SocketAddr, hyper::Error),
}

/// One connection attempt.
pub(super) async fn connect(address: SocketAddr) -> Result<TcpStream, ConnectError> {
    match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) if is_short_for_app(&stream) => Err(ConnectError::NoDescriptor(address)),
        Ok(Ok(stream)) => {
            // If this call fails, only the delay of Nagle's algorithm remains.
            let _ = stream.set_nodelay(true);
            // If this call fails, the kernel accepts megabytes before it asks for more. Then the pauses of an app that
            // reads slowly but steadily look longer (`stalled_uploads`).
            let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT);
            Ok(stream)
        }
        Ok(Err(error)) if is_exhausted(&error) => Err(ConnectError::NoDescriptor(address)),
        Ok(Err(error)) => Err(ConnectError::Refused(address, error)),
        Err(_elapsed) => Err(ConnectError::TimedOut(address)),
    }
}
