//! The one listener of all agents: HTTP/1.1 as far as the operator speaks it, kept alive.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use super::agents::Agents;

/// Connections that wait to be taken: an operator that starts opens thousands at once.
const BACKLOG: u32 = 8192;
/// Larger than any snapshot of these fleets.
const LONGEST: usize = 4 << 20;

/// Listens for all agents; the port.
pub(super) fn listen(agents: Arc<Agents>) -> anyhow::Result<u16> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    let listener = socket.listen(BACKLOG).context("listen for the agents")?;
    let port = listener.local_addr()?.port();
    tokio::spawn(accept(listener, agents));
    Ok(port)
}

async fn accept(listener: TcpListener, agents: Arc<Agents>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                eprintln!("fleet: cannot take a connection: {error}");
                tokio::task::yield_now().await;
                continue;
            }
        };
        // Other machines can reach this port, too; no agent is at the address that they reach it by.
        let number = match stream.local_addr().map(|address| address.ip()) {
            Ok(IpAddr::V4(address)) => agents.number(address),
            _ => None,
        };
        if let Some(number) = number
            && stream.set_nodelay(true).is_ok()
        {
            let agents = agents.clone();
            tokio::spawn(async move {
                // However it ends: the operator connects again.
                let _ = converse(&agents, number, stream).await;
            });
        }
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(agents: &Agents, number: usize, mut stream: S) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let (method, path, head, length) = loop {
            if let Some(request) = parse(&buffer)? {
                break request;
            }
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let whole = head + length;
        while buffer.len() < whole {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let answer = agents.answer(number, &method, &path, &buffer[head..whole]);
        buffer.drain(..whole);
        // Most of the time nothing is said, and ten thousand buffers are more than all else.
        if buffer.is_empty() {
            buffer = Vec::new();
        }
        let (code, length) = (answer.code, answer.body.len());
        let text = format!(
            "HTTP/1.1 {code} \r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{}",
            answer.body
        );
        stream.write_all(text.as_bytes()).await?;
        answer.written();
    }
}

/// Method, path, length of the head and of the body, once the head is there.
fn parse(buffer: &[u8]) -> io::Result<Option<(String, String, usize, usize)>> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let head = match request.parse(buffer).map_err(|error| wrong(&error.to_string()))? {
        httparse::Status::Complete(head) => head,
        httparse::Status::Partial if buffer.len() > LONGEST => return Err(wrong("a head without end")),
        httparse::Status::Partial => return Ok(None),
    };
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.map_or(Some(0), |header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    let length: usize = length.filter(|length| *length <= LONGEST).ok_or_else(|| wrong("no length"))?;
    let (method, path) = (request.method.unwrap_or_default(), request.path.unwrap_or_default());
    Ok(Some((method.to_owned(), path.to_owned(), head, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_in_pieces_and_one_behind_it_are_answered_in_turn() {
        let agents = Agents::new(1);
        let (mut operator, agent) = tokio::io::duplex(4096);
        let conversation = tokio::spawn(async move { converse(&agents, 0, agent).await });
        for piece in
            ["GET /v1/sta", "tus HTTP/1.1\r\nhost: a\r\n\r\nPUT /v1/config HTTP/1.1\r\ncontent-length: 1\r\n\r\n{"]
        {
            operator.write_all(piece.as_bytes()).await.unwrap();
        }
        operator.shutdown().await.unwrap();
        let mut told = String::new();
        operator.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 200 ") && told.contains("}HTTP/1.1 400 "), "{told}");
        conversation.await.unwrap().unwrap();
    }
}
