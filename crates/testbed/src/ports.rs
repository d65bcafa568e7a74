//! Ports for programs that start later.

use std::{io, net::Ipv4Addr};

use tokio::net::TcpSocket;

/// A port of loopback for a program that starts later, or again. No other program gets the port while this value
/// exists.
///
/// A socket is bound to the port, but does not listen. The kernel gives such a port to no socket that asks for any port,
/// and refuses connections to it. A program can still listen there, because servers and this socket set
/// `SO_REUSEADDR`.
pub struct ReservedPort {
    number: u16,
    _socket: TcpSocket,
}

impl ReservedPort {
    /// Reserves a free port.
    pub fn new() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        Ok(Self { number: socket.local_addr()?.port(), _socket: socket })
    }

    /// The port.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The address for the program, such as `127.0.0.1:40000`.
    pub fn address(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.number)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_a_server_that_asks_for_a_reserved_port_gets_it() {
        let port = ReservedPort::new().unwrap();
        let stranger = TcpSocket::new_v4().unwrap();
        let taken = stranger.bind(port.address().parse().unwrap()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(TcpStream::connect(port.address()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        for start in 1..=3 {
            // Like most servers, it sets `SO_REUSEADDR`.
            let server = TcpListener::bind(port.address()).unwrap_or_else(|error| panic!("start {start}: {error}"));
            let client = TcpStream::connect(port.address()).unwrap();
            assert_eq!(server.accept().unwrap().1, client.local_addr().unwrap());
        }
        assert_eq!(TcpStream::connect(port.address()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
