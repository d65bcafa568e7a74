//! A target: one address to send requests to, with a fixed number of connection slots.
//!
//! Slots are taken from the front of a queue and returned at its end, so all connections are used equally. Behind a
//! Service, this spreads the load over the pods. If no slot is free, the request is not sent. A request must never wait
//! for a slot, because then the server would determine the rate of the load.

use std::{
    collections::VecDeque,
    error::Error as _,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::Incoming,
    client::conn::{
        http1::{self, SendRequest},
        http2,
    },
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

type Connection = SendRequest<Full<Bytes>>;
type Shared = http2::SendRequest<Full<Bytes>>;

/// The maximum number of times that an HTTP/2 request is sent, if the server each time reports that it did not process
/// the request.
const ATTEMPTS: usize = 3;

/// The right to one exchange with the target. It contains the connection that the last exchange left open, if any.
pub(crate) struct Slot(Option<Connection>);

/// The response of a target.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The value of the `Retry-After` header in seconds. None if the header is missing or not a number.
    pub(crate) retry_after: Option<u64>,
}

pub(crate) struct Target {
    endpoint: String,
    host: HeaderValue,
    path: PathAndQuery,
    keepalive: bool,
    timeout: Duration,
    slots: Mutex<VecDeque<Slot>>,
    /// HTTP/2 connections with prior knowledge, which all slots share. If empty, each slot has an HTTP/1.1 connection.
    shared: Vec<tokio::sync::Mutex<Option<Shared>>>,
    /// The index of the next shared connection, modulo their number.
    turn: AtomicUsize,
}

impl Target {
    /// Creates a target that connects to `endpoint` (host:port). `uri` contains the host and the path of the requests.
    pub(crate) fn new(
        endpoint: String,
        uri: &Uri,
        connections: usize,
        http2: usize,
        keepalive: bool,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let authority = uri.authority().with_context(|| format!("{uri}: no host"))?;
        Ok(Self {
            endpoint,
            host: HeaderValue::from_str(authority.as_str()).with_context(|| format!("{uri}: host"))?,
            path: uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")),
            keepalive,
            timeout,
            slots: Mutex::new((0..connections.max(1)).map(|_| Slot(None)).collect()),
            shared: (0..http2).map(|_| tokio::sync::Mutex::default()).collect(),
            turn: AtomicUsize::new(0),
        })
    }

    /// Sets the host and path of `request` for this target.
    pub(crate) fn address(&self, request: &mut Request<Full<Bytes>>) {
        if !self.shared.is_empty() {
            let host = self.host.to_str().expect("the host comes from an authority");
            let uri = Uri::builder().scheme("http").authority(host).path_and_query(self.path.clone()).build();
            *request.uri_mut() = uri.expect("all parts are valid");
            return;
        }
        *request.uri_mut() = Uri::from(self.path.clone());
        request.headers_mut().entry(header::HOST).or_insert_with(|| self.host.clone());
        if !self.keepalive {
            request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// Takes a free slot, if there is one.
    pub(crate) fn take(&self) -> Option<Slot> {
        self.slots.lock().expect("not poisoned").pop_front()
    }

    /// Sends `request`, and reads the whole response. Afterwards the slot is free again, even after an error.
    pub(crate) async fn send(&self, slot: Slot, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let exchange = async {
            if self.shared.is_empty() {
                return self.exchange(slot.0, request).await;
            }
            Ok((self.exchange_shared(request).await?, None))
        };
        let exchange = tokio::time::timeout(self.timeout, exchange).await;
        let (result, connection) = match exchange {
            Ok(Ok((answer, connection))) => (Ok(answer), connection),
            Ok(Err(error)) => (Err(error), None),
            Err(_) => (Err(anyhow::anyhow!("no answer from {} within {:?}", self.endpoint, self.timeout)), None),
        };
        self.slots.lock().expect("not poisoned").push_back(Slot(connection));
        result
    }

    async fn exchange(
        &self,
        connection: Option<Connection>,
        mut request: Request<Full<Bytes>>,
    ) -> anyhow::Result<(Answer, Option<Connection>)> {
        if let Some(mut connection) = connection {
            // Like browsers and most libraries, this repeats an idempotent request if a reused connection is closed
            // without an answer (RFC 9110 section 9.2.2).
            let again = request.method().is_idempotent().then(|| request.clone());
            match connection.try_send_request(request).await {
                Ok(response) => return self.read(response, connection).await,
                // If the error contains the request, it was never sent, because the idle connection had been closed.
                Err(mut error) => match error.take_message().or(again) {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error()).context("send"),
                },
            }
        }
        let mut connection = self.connect().await?;
        let response = connection.send_request(request).await.context("send")?;
        self.read(response, connection).await
    }

    /// Sends a request over HTTP/2, and retries like clients of gRPC and Go. A request is repeated if the server
    /// reports that it did not process the request (RFC 9113 section 8.7). An idempotent request is also repeated if
    /// its connection ends without an answer.
    async fn exchange_shared(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.shared.len();
        let mut attempt = 1;
        loop {
            let (mut connection, fresh) = self.connection(turn).await?;
            match connection.try_send_request(request.clone()).await {
                Ok(response) => return answer(response).await,
                Err(mut error) => {
                    let unseen = error.take_message().is_some() || was_not_processed(error.error());
                    if attempt == ATTEMPTS || !(unseen || request.method().is_idempotent() && !fresh) {
                        return Err(error.into_error()).context("send");
                    }
                    attempt += 1;
                }
            }
        }
    }

    /// Returns the shared connection with this index, and true if it was opened for this request.
    async fn connection(&self, turn: usize) -> anyhow::Result<(Shared, bool)> {
        let mut place = self.shared[turn].lock().await;
        if let Some(open) = &mut *place
            && open.ready().await.is_ok()
        {
            return Ok((open.clone(), false));
        }
        let (connection, driver) =
            http2::handshake(TokioExecutor::new(), self.dial().await?).await.context("handshake")?;
        tokio::spawn(driver);
        Ok((place.insert(connection).clone(), true))
    }

    async fn dial(&self) -> anyhow::Result<TokioIo<TcpStream>> {
        let stream = TcpStream::connect(&self.endpoint).await.with_context(|| format!("connect {}", self.endpoint))?;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(stream))
    }

    async fn connect(&self) -> anyhow::Result<Connection> {
        let (connection, driver) = http1::handshake(self.dial().await?).await.context("handshake")?;
        // The driver ends with its connection. An error of the connection is reported by the request that it affects.
        tokio::spawn(driver);
        Ok(connection)
    }

    async fn read(
        &self,
        response: Response<Incoming>,
        mut connection: Connection,
    ) -> anyhow::Result<(Answer, Option<Connection>)> {
        let answer = answer(response).await?;
        let reusable = self.keepalive && connection.ready().await.is_ok();
        Ok((answer, reusable.then_some(connection)))
    }
}

/// Reads a response to its end.
async fn answer(response: Response<Incoming>) -> anyhow::Result<Answer> {
    let status = response.status().as_u16();
    let retry_after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame.context("read body")?;
    }
    Ok(Answer { status, retry_after })
}

/// Returns true if the server reports that it did not process the request: by `REFUSED_STREAM`, or by a GOAWAY that
/// does not include the stream.
fn was_not_processed(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        cause.is_remote() && (cause.reason() == Some(h2::Reason::REFUSED_STREAM) || cause.is_go_away())
    })
}
