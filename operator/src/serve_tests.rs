use std::net::IpAddr;

use axum::routing::post;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    time::Instant,
};

use super::*;

const IDLE: Duration = Duration::from_secs(60);
const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\n";

async fn answer(Extension(connection): Extension<Arc<Connection>>, body: Body) -> String {
    let body = read_body(body, 4).await.map_or_else(|error| error.to_string(), |body| format!("{body:?}"));
    format!("{} {body}", connection.peer())
}

/// Starts a server on all addresses, and returns its address.
fn start() -> SocketAddr {
    let listener = listen("[::]:0".parse().unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(run(listener, Router::new().route("/", post(answer)), IDLE));
    (Ipv4Addr::LOCALHOST, port).into()
}

async fn connect(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

async fn read_to_end(mut stream: TcpStream) -> String {
    let mut read = String::new();
    // A connection that the server closes early can end in a reset.
    let _ = stream.read_to_string(&mut read).await;
    read
}

#[tokio::test]
async fn clients_that_stall_keep_no_other_out() {
    let server = start();
    let mut stalled = Vec::new();
    for count in 0..2 * MAX_CONNECTIONS {
        let mut stream = connect([127, 0, 0, 2], server).await;
        // Some stall before their head, and others before their body.
        if count % 2 == 0 && stream.write_all(HEAD).await.is_err() {
            continue;
        }
        stalled.push(stream);
    }
    let mut stream = connect([127, 0, 0, 1], server).await;
    stream.write_all(&[HEAD, b"ok"].concat()).await.unwrap();
    let answer = read_to_end(stream).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1 b\"ok\""), "{answer}");
    // The oldest connections were closed.
    assert_eq!(read_to_end(stalled.swap_remove(0)).await, "");
}

#[tokio::test]
async fn a_server_accepts_ipv4_and_ipv6() {
    let server = start();
    let ipv6 = TcpStream::connect((std::net::Ipv6Addr::LOCALHOST, server.port())).await;
    let none = TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, 0)).await.is_err();
    assert!(ipv6.is_ok() || none, "{ipv6:?}");
    for (stream, peer) in [(TcpStream::connect(server).await, IpAddr::from([127, 0, 0, 1]))]
        .into_iter()
        .chain(ipv6.is_ok().then_some((ipv6, std::net::Ipv6Addr::LOCALHOST.into())))
    {
        let mut stream = stream.unwrap();
        stream.write_all(&[HEAD, b"ok"].concat()).await.unwrap();
        let answer = read_to_end(stream).await;
        assert!(answer.ends_with(&format!("{peer} b\"ok\"")), "{answer}");
    }
    let taken = listen(server).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
}

#[tokio::test(start_paused = true)]
async fn a_body_is_bounded_in_time_and_size() {
    let begun = Instant::now();
    let never = Body::from_stream(futures::stream::pending::<io::Result<Bytes>>());
    let slow = read_body(never, 4).await.unwrap_err();
    assert_eq!((slow.to_string(), begun.elapsed()), ("the body did not arrive within 10 s".to_owned(), BODY_TIMEOUT));
    assert_eq!(read_body(Body::from("four"), 4).await.unwrap(), "four");
    let long = read_body(Body::from("five!"), 4).await.unwrap_err();
    assert_eq!(long.to_string(), "the body cannot be read: length limit exceeded");
}
