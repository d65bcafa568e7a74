//! One address to send to, with a fixed number of slots for connections to it.
//!
//! Slots are taken from the front and given back at the end, so that all of them are in use before any is used again:
//! behind a Service this spreads the load over as many pods as there are connections. When no slot is free the
//! request is not sent at all; it must never wait, or the load would follow the server's pace.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Empty};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

type Connection = SendRequest<Empty<Bytes>>;

/// The right to one exchange with the target, with the connection that the last one left open.
pub(crate) struct Slot(Option<Connection>);

/// What a target said.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The `Retry-After` field in seconds; none if it is missing or no number.
    pub(crate) retry_after: Option<u64>,
}

pub(crate) struct Target {
    endpoint: String,
    host: HeaderValue,
    path: PathAndQuery,
    keepalive: bool,
    timeout: Duration,
    slots: Mutex<VecDeque<Slot>>,
}

impl Target {
    /// `endpoint` (host:port) is connected to; `uri` says which host and path are asked for there.
    pub(crate) fn new(
        endpoint: String,
        uri: &Uri,
        connections: usize,
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
        })
    }

    /// Makes `request` one for this target.
    pub(crate) fn address(&self, request: &mut Request<Empty<Bytes>>) {
        *request.uri_mut() = Uri::from(self.path.clone());
        request.headers_mut().entry(header::HOST).or_insert_with(|| self.host.clone());
        if !self.keepalive {
            request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// A slot, unless all of them are in use.
    pub(crate) fn take(&self) -> Option<Slot> {
        self.slots.lock().expect("no holder panics").pop_front()
    }

    /// Sends `request` and reads the whole answer; the slot is free again afterwards, whatever happened.
    pub(crate) async fn send(&self, slot: Slot, request: Request<Empty<Bytes>>) -> anyhow::Result<Answer> {
        let exchange = tokio::time::timeout(self.timeout, self.exchange(slot.0, request)).await;
        let (result, connection) = match exchange {
            Ok(Ok((answer, connection))) => (Ok(answer), connection),
            Ok(Err(error)) => (Err(error), None),
            Err(_) => (Err(anyhow::anyhow!("no answer from {} within {:?}", self.endpoint, self.timeout)), None),
        };
        self.slots.lock().expect("no holder panics").push_back(Slot(connection));
        result
    }

    async fn exchange(
        &self,
        connection: Option<Connection>,
        mut request: Request<Empty<Bytes>>,
    ) -> anyhow::Result<(Answer, Option<Connection>)> {
        if let Some(mut connection) = connection {
            // As browsers and most libraries do: what is idempotent is asked again if a connection that worked before is closed
            // without an answer (RFC 9110 section 9.2.2).
            let again = request.method().is_idempotent().then(|| request.clone());
            match connection.try_send_request(request).await {
                Ok(response) => return self.read(response, connection).await,
                // A request that comes back was never sent: the idle connection had been closed meanwhile.
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

    async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(&self.endpoint).await.with_context(|| format!("connect {}", self.endpoint))?;
        stream.set_nodelay(true)?;
        let (connection, driver) = http1::handshake(TokioIo::new(stream)).await.context("handshake")?;
        // The driver ends with its connection; a failure shows at the request that it concerns.
        tokio::spawn(driver);
        Ok(connection)
    }

    async fn read(
        &self,
        response: Response<Incoming>,
        mut connection: Connection,
    ) -> anyhow::Result<(Answer, Option<Connection>)> {
        let status = response.status().as_u16();
        let retry_after =
            response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame.context("read body")?;
        }
        let reusable = self.keepalive && connection.ready().await.is_ok();
        Ok((Answer { status, retry_after }, reusable.then_some(connection)))
    }
}
