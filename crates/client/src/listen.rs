//! Binds all listeners before anything runs, so that a port conflict fails the start with an error that names the
//! flag.
//!
//! The proxy port has one listener per worker (`SO_REUSEPORT`). The kernel spreads connections over them, and no
//! accepted socket moves between threads. The option would also let a second agent bind the same port unnoticed, so
//! this module first binds the port without the option.
//!
//! `[::]` accepts IPv4 and IPv6 for any value of `net.ipv6.bindv6only`, because pods have addresses of either kind or
//! of both. On a system without IPv6 it becomes `0.0.0.0`. Every other address is bound as given.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use tokio::net::TcpStream;

/// The number of connections that can wait for `accept`. The kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The number of unsent bytes that the kernel buffers for a client. By default, the kernel accepts megabytes from the
/// agent immediately. Then the agent observes no progress for minutes, and a client that reads a few KB per second
/// would count as stalled.
const MOST_UNSENT: u32 = 128 * 1024;

/// TCP keepalive: how long a connection is quiet before the kernel probes the client, how often the kernel probes, and
/// how many times. An HTTP/2 PING is not suitable: the client answers it only after it has received all data in flight,
/// so a slow client would count as disconnected.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// A listener could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {flag} {address}: {cause}")]
pub struct BindError {
    pub(crate) flag: &'static str,
    pub(crate) address: SocketAddr,
    /// Not a source: the message contains it.
    pub(crate) cause: io::Error,
}

/// Binds one listener.
///
/// # Errors
///
/// The address cannot be bound. The error names `flag`.
pub fn bind(flag: &'static str, address: SocketAddr) -> Result<TcpListener, BindError> {
    open_or_ipv4(address, |address| open(address, false))
        .and_then(|socket| {
            socket.listen(BACKLOG)?;
            Ok(socket.into())
        })
        .map_err(|cause| BindError { flag, address, cause })
}

/// The address of a listener that was bound to `wanted`. For port 0, the kernel has chosen the port.
///
/// # Errors
///
/// The system does not tell the address.
pub fn bound_address(flag: &'static str, wanted: SocketAddr, listener: &TcpListener) -> Result<SocketAddr, BindError> {
    listener.local_addr().map_err(|cause| BindError { flag, address: wanted, cause })
}

/// Sockets that are bound to one address and do not listen yet: the kernel refuses connections.
#[derive(Debug)]
pub struct BoundSockets {
    flag: &'static str,
    address: SocketAddr,
    sockets: Vec<Socket>,
}

/// Binds `count` listeners on one address. The kernel spreads connections over them.
///
/// # Errors
///
/// The address cannot be bound. The error names `flag`.
pub fn bind_shared(flag: &'static str, address: SocketAddr, count: usize) -> Result<BoundSockets, BindError> {
    let shared = || {
        // This bind fails if another socket listens on the port, with any options. `drop` frees the port again.
        drop(open_or_ipv4(address, |address| open(address, false))?);
        let first = open_or_ipv4(address, |address| open(address, true))?;
        let bound = local_address(&first)?;
        let mut sockets = vec![first];
        for _ in 1..count {
            sockets.push(open(bound, true)?);
        }
        Ok(BoundSockets { flag, address: bound, sockets })
    };
    shared().map_err(|cause| BindError { flag, address, cause })
}

impl BoundSockets {
    /// The address that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens the port.
    ///
    /// # Errors
    ///
    /// The kernel refuses to listen.
    pub fn listen(self) -> Result<Vec<TcpListener>, BindError> {
        let Self { flag, address, sockets } = self;
        // All sockets are bound before the first one listens, so that no connection arrives while others are being
        // bound.
        for socket in &sockets {
            socket.listen(BACKLOG).map_err(|cause| BindError { flag, address, cause })?;
        }
        Ok(sockets.into_iter().map(TcpListener::from).collect())
    }
}

/// Closes a listener. Returns the connections whose handshakes the kernel has completed: their clients would get a reset.
///
/// The runtime learns of a new connection only when it waits for events, so this asks the kernel.
pub fn close_listener(listener: tokio::net::TcpListener) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        loop {
            match listener.as_ref()?.accept() {
                Ok((stream, peer)) => {
                    let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
                    return stream.ok().map(|stream| (stream, peer));
                }
                // The client has left in the meantime.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return None,
            }
        }
    })
}

/// Opens a socket on an address. Falls back from `[::]` to `0.0.0.0` on a system without IPv6.
fn open_or_ipv4<T>(address: SocketAddr, open: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let known = |error: &io::Error| matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied);
    match open(address) {
        Err(error) if is_for_all(address) && !known(&error) => {
            // The error of the requested address is more useful than the error of the fallback.
            open((Ipv4Addr::UNSPECIFIED, address.port()).into()).map_err(|_| error)
        }
        opened => opened,
    }
}

fn is_for_all(address: SocketAddr) -> bool {
    address.is_ipv6() && address.ip().is_unspecified()
}

fn open(address: SocketAddr, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if is_for_all(address) {
        socket.set_only_v6(false)?;
    }
    // Without this option, a restart would have to wait until old connections leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    // Accepted sockets inherit the option. If this call fails, slow clients count as stalled sooner.
    let _ = socket.set_tcp_notsent_lowat(MOST_UNSENT);
    // If the second call fails, the agent detects later that a client's host has disappeared.
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES);
    let _ = socket.set_tcp_keepalive(&keepalive);
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

    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn the_ipv6_wildcard_accepts_ipv4_and_ipv6() {
        let address = "[::]:0".parse().unwrap();
        let shared = bind_shared("--listen", address, 2).unwrap();
        let (shared, single) = (shared.listen().unwrap(), bind("--telemetry", address).unwrap());
        for port in [&shared[0], &single].map(|listener| listener.local_addr().unwrap().port()) {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("IPv4");
            let ipv6 = TcpStream::connect((std::net::Ipv6Addr::LOCALHOST, port));
            let none = TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, 0)).is_err();
            assert!(ipv6.is_ok() || none, "{ipv6:?}");
        }
    }

    #[test]
    fn without_ipv6_only_the_ipv6_wildcard_falls_back_to_ipv4() {
        const NO_IPV6: i32 = 97;
        let without = |address: SocketAddr| {
            let error = || io::Error::from_raw_os_error(NO_IPV6);
            if address.is_ipv6() { Err(error()) } else { Ok(address) }
        };
        let open =
            |address: &str| open_or_ipv4(address.parse().unwrap(), without).map_err(|error| error.raw_os_error());
        assert_eq!(open("[::]:8480"), Ok("0.0.0.0:8480".parse().unwrap()));
        assert_eq!(open("127.0.0.1:1"), Ok("127.0.0.1:1".parse().unwrap()));
        assert_eq!(open("[::1]:1"), Err(Some(NO_IPV6)));

        let taken = |_| Err::<(), _>(io::Error::from(io::ErrorKind::AddrInUse));
        assert_eq!(open_or_ipv4("[::]:1".parse().unwrap(), taken).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    /// The clients connect after the runtime has looked for events the last time.
    #[tokio::test]
    async fn no_client_of_a_closed_listener_is_lost() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listener.accept().now_or_never().is_none());
        let clients = [(); 3].map(|()| TcpStream::connect(address).unwrap().local_addr().unwrap());
        let accepted: Vec<_> = close_listener(listener).map(|(_, peer)| peer).collect();
        assert_eq!(accepted, clients);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_taken_port_is_an_error_that_names_the_flag() {
        let shared = bind_shared("--listen", "127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let address = shared.address();
        assert!(TcpStream::connect(address).is_err(), "the port is not open yet");
        let listeners = shared.listen().unwrap();
        assert_eq!(listeners.iter().map(|listener| listener.local_addr().unwrap()).collect::<Vec<_>>(), [address; 2]);

        for error in [bind_shared("--listen", address, 1).unwrap_err(), bind("--control", address).unwrap_err()] {
            assert!(error.to_string().contains(&format!("{} {address}", error.flag)), "{error}");
            assert_eq!(error.cause.kind(), io::ErrorKind::AddrInUse);
            assert!(std::error::Error::source(&error).is_none(), "the message contains the cause");
        }
    }
}
