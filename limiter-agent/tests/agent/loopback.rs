//! Tests an app on one of the two loopback addresses, behind an agent that was configured with the other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use crate::support::{Agent, PATIENCE, read_head};

const IPV4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const IPV6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A socket that reserves its port without listening yet.
fn bound(address: SocketAddr) -> Option<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.ok()?;
    socket.bind(address).ok()?;
    Some(socket)
}

/// One port on both addresses; `None` without IPv6.
fn pair() -> Option<(u16, TcpSocket, TcpSocket)> {
    bound((IPV6, 0).into())?;
    // Another process may use the port on one of the addresses.
    (0..100).find_map(|_| {
        let ipv4 = bound((IPV4, 0).into()).expect("a free port");
        let port = ipv4.local_addr().expect("bound").port();
        Some((port, ipv4, bound((IPV6, port).into())?))
    })
}

/// An app that responds with its own address, and accepts a new connection for each request.
fn serve(socket: TcpSocket) -> JoinHandle<()> {
    let listener = socket.listen(64).expect("listening");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            answer(stream, &listener).await;
        }
    })
}

async fn answer(mut stream: TcpStream, listener: &TcpListener) {
    if read_head(&mut stream).await.is_none() {
        return;
    }
    let said = format!("at {}", listener.local_addr().expect("bound").ip());
    let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{said}", said.len());
    stream.write_all(answer.as_bytes()).await.expect("sent");
    stream.shutdown().await.expect("closed");
}

/// Sends a request with these fields; returns the first and the last line of the response.
async fn ask(agent: &Agent, fields: &str) -> (String, String) {
    let mut client = agent.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n");
    client.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    timeout(PATIENCE, client.read_to_string(&mut answer))
        .await
        .expect("answered before the timeout")
        .expect("a clean close");
    let line = |line: Option<&str>| line.unwrap_or_default().to_owned();
    (line(answer.lines().next()), line(answer.lines().last()))
}

#[tokio::test]
async fn an_app_is_found_on_either_loopback_address_last_known_first() {
    // The second request takes hyper's path, and the others take the short path.
    const WAYS: [&str; 3] = ["", "te: trailers\r\n", ""];
    for named in [IPV4, IPV6] {
        let Some((port, ipv4, ipv6)) = pair() else {
            eprintln!("this machine has no IPv6");
            return;
        };
        let (own, other) = if named == IPV4 { (ipv4, ipv6) } else { (ipv6, ipv4) };
        let at_own = ("HTTP/1.1 200 OK".to_owned(), format!("at {named}"));
        let at_other = (at_own.0.clone(), format!("at {}", other.local_addr().expect("bound").ip()));
        let agent = Agent::start((named, port).into(), &["--workers", "1"]);
        assert_eq!(ask(&agent, "").await.0, "HTTP/1.1 502 Bad Gateway", "there is no app yet");

        let first = serve(other);
        for fields in WAYS {
            assert_eq!(ask(&agent, fields).await, at_other, "{fields:?}");
        }
        // From here on, apps listen on both addresses.
        let second = serve(own);
        for fields in WAYS {
            assert_eq!(ask(&agent, fields).await, at_other, "{fields:?}");
        }
        first.abort();
        assert!(first.await.expect_err("the app was aborted").is_cancelled());
        for fields in WAYS {
            assert_eq!(ask(&agent, fields).await, at_own, "{fields:?}");
        }
        second.abort();
    }
}
