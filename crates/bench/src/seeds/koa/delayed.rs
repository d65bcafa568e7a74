//! A TCP proxy that delays all bytes to and from a server: a server that is far away.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::clock;

/// Starts the proxy, which runs until this program ends. Bytes arrive after `delay`, in each direction.
pub(super) fn delayed(server: SocketAddr, delay: Duration) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("bind the proxy")?;
    let address = listener.local_addr().context("bind the proxy")?;
    spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            // A client that cannot be connected is disconnected.
            let _ = connect(client, server, delay);
        }
    })?;
    Ok(address)
}

fn connect(client: TcpStream, server: SocketAddr, delay: Duration) -> anyhow::Result<()> {
    let server = TcpStream::connect(server)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    pass_on(client.try_clone()?, server.try_clone()?, delay)?;
    pass_on(server, client, delay)
}

/// One thread reads, and another thread writes what is due.
fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration) -> anyhow::Result<()> {
    let (sender, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    spawn(move || {
        for (due, bytes) in pieces {
            if let Some(early) = due.checked_duration_since(clock::now()) {
                clock::sleep(early);
            }
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    })?;
    spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send((clock::now() + delay, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    })
}

fn spawn(run: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new().name("delay".to_owned()).spawn(run).context("start a thread of the proxy")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_late_and_in_order() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = server.local_addr().expect("bound");
        std::thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("a client");
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).expect("four bytes");
            stream.write_all(&bytes).expect("connected");
        });
        let delay = Duration::from_millis(30);
        let mut client = TcpStream::connect(delayed(address, delay).expect("a free port")).expect("it listens");
        let started = clock::now();
        client.write_all(b"pi").expect("connected");
        client.write_all(b"ng").expect("connected");
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).expect("it ends when the server does");
        assert_eq!(bytes, b"ping");
        assert!(clock::since(started) >= 2 * delay);
    }
}
