//! Binding, before anything runs: a port that is taken is known at the start, with the flag that named it.
//!
//! The proxy port has one listener per worker (`SO_REUSEPORT`), so that the kernel spreads connections and no accepted
//! socket moves between threads. That option would also let a second agent bind the same port without a word, so the
//! port is first bound without it.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

use socket2::{Domain, Protocol, Socket, Type};

/// How many connections may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// A listener could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {flag} {address}: {source}")]
pub struct BindError {
    pub(crate) flag: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) source: io::Error,
}

/// One listener.
pub(crate) fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    open(address, false)
        .and_then(|socket| {
            socket.listen(BACKLOG)?;
            Ok(socket.into())
        })
        .map_err(|source| BindError { flag, address, source })
}

/// Listeners on one address that do not listen yet: whoever connects is refused.
#[derive(Debug)]
pub(crate) struct Shared {
    flag: &'static str,
    address: SocketAddr,
    sockets: Vec<Socket>,
}

/// `count` listeners on one address, among which the kernel will spread connections.
pub(crate) fn bind_shared(flag: &'static str, address: SocketAddr, count: usize) -> Result<Shared, BindError> {
    let shared = || {
        // Fails if anybody listens there, whatever options they bound with. It holds the port no longer than this line.
        drop(open(address, false)?);
        let first = open(address, true)?;
        let bound = local_address(&first)?;
        let mut sockets = vec![first];
        for _ in 1..count {
            sockets.push(open(bound, true)?);
        }
        Ok(Shared { flag, address: bound, sockets })
    };
    shared().map_err(|source| BindError { flag, address, source })
}

impl Shared {
    /// The address that was bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens the port.
    pub(crate) fn listen(self) -> Result<Vec<TcpListener>, BindError> {
        let Self { flag, address, sockets } = self;
        // All are bound, so that no connection goes to a group that is still growing.
        for socket in &sockets {
            socket.listen(BACKLOG).map_err(|source| BindError { flag, address, source })?;
        }
        Ok(sockets.into_iter().map(TcpListener::from).collect())
    }
}

fn open(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Without this a restart would have to wait for old connections to leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn local_address(socket: &Socket) -> io::Result<SocketAddr> {
    socket.local_addr()?.as_socket().ok_or_else(|| io::Error::other("a TCP socket without an internet address"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_taken_port_is_an_error_that_names_the_flag() {
        let shared = bind_shared("--listen", "127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let address = shared.address();
        assert!(TcpStream::connect(address).is_err(), "not open yet");
        let listeners = shared.listen().unwrap();
        assert_eq!(listeners.iter().map(|listener| listener.local_addr().unwrap()).collect::<Vec<_>>(), [address; 2]);

        for error in [bind_shared("--listen", address, 1).unwrap_err(), bind("--control", address).unwrap_err()] {
            assert!(error.to_string().contains(&format!("{} {address}", error.flag)), "{error}");
            assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
        }
    }
}
