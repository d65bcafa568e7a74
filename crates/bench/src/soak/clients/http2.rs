//! Clients of HTTP/2 with prior knowledge, which cancel streams.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use http::Request;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Body as _, Frame},
    client::conn::http2::{SendRequest, handshake},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::{Client, Target};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A connection, which is closed when it is dropped.
pub(super) struct Connection {
    requests: SendRequest<Body>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.context("connect")?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        let (requests, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(stream)).await.context("start HTTP/2")?;
        let task = tokio::task::spawn_local(async move {
            // The error is ignored here, because the requests of this connection return it.
            let _ = connection.await;
        });
        Ok(Self { requests, task })
    }

    pub(super) async fn get(&mut self, path: &str) -> anyhow::Result<(u16, Bytes)> {
        self.requests.ready().await.context("wait for the connection")?;
        let response = self.requests.send_request(request(path, empty())?).await.context("send a request")?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.context("read the body")?;
        Ok((status, body.to_bytes()))
    }
}

fn request(path: &str, body: Body) -> anyhow::Result<Request<Body>> {
    let builder = Request::builder().method(if body.is_end_stream() { "GET" } else { "POST" });
    builder.uri(format!("http://app{path}")).body(body).context("a request")
}

fn empty() -> Body {
    Full::default().map_err(|never| match never {}).boxed_unsync()
}

/// A body that begins, and never ends.
fn endless() -> Body {
    let begins = futures::stream::iter([Ok(Frame::data(Bytes::from_static(&[0; 4096])))]);
    StreamBody::new(begins.chain(futures::stream::pending())).boxed_unsync()
}

/// A client that cancels streams in every state, on a connection that is kept for some rounds.
#[derive(Default)]
pub(super) struct Cancelling {
    connection: Option<Connection>,
    rounds: usize,
}

const ROUNDS: usize = 50;
const MOMENT: Duration = Duration::from_millis(20);

impl Client for Cancelling {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(target.proxy).await?,
        };
        connection.requests.ready().await.context("wait for the connection")?;
        // One stream is cancelled immediately, before its request is sent.
        drop(connection.requests.send_request(request("/slow", empty())?));
        // Two streams are cancelled before the head of the response arrives.
        for path in ["/slow", "/slow"] {
            let asking = connection.requests.send_request(request(path, empty())?);
            ensure!(tokio::time::timeout(MOMENT, asking).await.is_err(), "a response before the app has responded");
        }
        // Three streams are cancelled during a body: two during the response, with much of it unread, and one during
        // the request.
        let (dripping, huge, uploading) = (
            connection.requests.send_request(request("/drip", empty())?),
            connection.requests.send_request(request("/huge", empty())?),
            connection.requests.send_request(request("/upload", endless())?),
        );
        let mut uploading = Box::pin(uploading);
        let early = uploading.as_mut().now_or_never();
        ensure!(early.is_none(), "a response although the request's body has not ended");
        let (dripping, huge) = (dripping.await.context("request /drip")?, huge.await.context("request /huge")?);
        ensure!(dripping.status() == 200 && huge.status() == 200, "{} and {}", dripping.status(), huge.status());
        let first = dripping.into_body().frame().await.context("no body")?.context("read drips")?;
        ensure!(first.is_data(), "a frame that is not data");
        drop((huge, uploading));
        // One stream is not cancelled. Its response must be complete, with its trailers.
        connection.requests.ready().await.context("wait for the connection")?;
        let whole = connection.requests.send_request(request("/drip", empty())?).await.context("request /drip")?;
        let whole = whole.into_body().collect().await.context("read all drips")?;
        let trailer = whole.trailers().and_then(|trailers| trailers.get("x-drips")).cloned();
        ensure!(trailer.is_none_or(|drips| drips == "10"), "the wrong trailer");
        ensure!(whole.to_bytes().len() == 50, "the wrong number of drips");
        self.rounds += 1;
        if !self.rounds.is_multiple_of(ROUNDS) {
            self.connection = Some(connection);
        }
        Ok(())
    }
}
