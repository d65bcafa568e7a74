//! Clients with correct HTTP/1.1, on connections that are kept for many requests, for some, or for one.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{Request, header::CONNECTION};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{Client, Target};

/// A connection, which is closed when it is dropped.
pub(in crate::soak) struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// True after a failure, or after a response with `connection: close`.
    is_over: bool,
    _task: Task,
}

/// A task that is aborted when it is dropped, which closes its socket.
struct Task(tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Connection {
    pub(in crate::soak) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        Self::on(TcpStream::connect(address).await.context("connect")?).await
    }

    /// Returns the connection of earlier rounds. Opens another one if it is over.
    pub(in crate::soak) async fn kept(kept: &mut Option<Self>, address: SocketAddr) -> anyhow::Result<&mut Self> {
        match kept.take().filter(|connection| !connection.is_over) {
            Some(connection) => Ok(kept.insert(connection)),
            None => Ok(kept.insert(Self::open(address).await?)),
        }
    }

    async fn on(stream: TcpStream) -> anyhow::Result<Self> {
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        let (requests, connection) = handshake(TokioIo::new(stream)).await.context("begin")?;
        let task = Task(tokio::task::spawn_local(async move {
            // The error is ignored here, because the requests of this connection return it.
            let _ = connection.await;
        }));
        Ok(Self { requests, is_over: false, _task: task })
    }

    pub(in crate::soak) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<(u16, Bytes)> {
        let mut request = Request::builder().uri(path).header("host", "app");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Full::default()).context("a request")?).await
    }

    pub(in crate::soak) async fn put(&mut self, path: &str, body: String) -> anyhow::Result<(u16, Bytes)> {
        let request = Request::put(path).header("host", "agent").body(Full::from(body));
        self.send(request.context("a request")?).await
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<(u16, Bytes)> {
        self.is_over = true;
        self.requests.ready().await.context("wait for the connection")?;
        let response = self.requests.send_request(request).await.context("send a request")?;
        let status = response.status().as_u16();
        let closes = response.headers().get(CONNECTION).is_some_and(|value| value == "close");
        let body = response.into_body().collect().await.context("read the body")?;
        self.is_over = closes;
        Ok((status, body.to_bytes()))
    }
}

/// Checks that an answer is the app's response, or a well-formed refusal.
pub(super) fn answered((status, body): &(u16, Bytes)) -> anyhow::Result<()> {
    ensure!(*status == 429 || (*status == 200 && !body.is_empty()), "got {status} with {} bytes", body.len());
    Ok(())
}

/// A client that connects, sends one request, and disconnects.
pub(super) struct Churn {
    round: usize,
}

impl Churn {
    pub(super) fn new(lane: usize) -> Self {
        Self { round: lane }
    }
}

impl Client for Churn {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        self.round += 1;
        let stream = TcpStream::connect(target.proxy).await.context("connect")?;
        if self.round.is_multiple_of(3) {
            stream.set_zero_linger().context("reset the connection")?;
        }
        let close: &[_] = if self.round.is_multiple_of(2) { &[("connection", "close")] } else { &[] };
        answered(&Connection::on(stream).await?.get("/churn", close).await?)
    }
}

/// A client that keeps its connection for some requests.
#[derive(Default)]
pub(super) struct Kept {
    connection: Option<Connection>,
    asked: usize,
}

const REQUESTS: usize = 20;

impl Client for Kept {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        let connection = Connection::kept(&mut self.connection, target.proxy).await?;
        answered(&connection.get("/churn", &[]).await?)?;
        self.asked += 1;
        if self.asked.is_multiple_of(REQUESTS) {
            self.connection = None;
        }
        Ok(())
    }
}

/// A client that sends one request, and then waits until the connection is closed.
pub(super) struct Idle;

/// The run fails if a connection is idle for longer. This time is longer than the agent's timeout.
const IDLE_MOST: Duration = Duration::from_secs(15);

impl Client for Idle {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(target.proxy).await.context("connect")?;
        stream.write_all(b"GET /churn HTTP/1.1\r\nhost: app\r\n\r\n").await.context("send a request")?;
        let mut read = Vec::new();
        let end = tokio::time::timeout(IDLE_MOST, stream.read_to_end(&mut read)).await;
        end.context("an idle connection was kept too long")?.context("an idle connection was not closed in order")?;
        ensure!(
            read.starts_with(b"HTTP/1.1 200") || read.starts_with(b"HTTP/1.1 429"),
            "no answer before the connection was closed"
        );
        Ok(())
    }
}
