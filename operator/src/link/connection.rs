//! One connection to one agent: HTTP/1.1 in plain text, or HTTP/2 over mutual TLS.
//!
//! It belongs to one link and is made for one pod: a connection is never used for another pod that has got the same
//! address. It lives at most as long as the certificates that it was made with.
//!
//! It is no task of its own: its bytes move while somebody waits for an answer or for its end, which a link does but for the
//! moments in which it waits for a place. So no task has to wake another for each question of thousands.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::Either;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::identity::{Credentials, PodIdentity};

/// How long a silent peer is believed to be there, and how often it is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;
/// Answers of agents are short, and connections many.
const READ_BUFFER: usize = 4096;
/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
const WINDOW: u32 = 1024 * 1024;
/// The longest head of an answer.
const MAX_HEAD_BYTES: u32 = 16 * 1024;

/// An open connection. It is closed with its value.
pub(super) struct Connection {
    sender: Sender,
    /// What moves the bytes; none once it has ended.
    driver: Option<Driver>,
    /// Until when its certificates are good, in seconds of Unix time.
    not_after: Option<u64>,
}

enum Sender {
    Plain(http1::SendRequest<Full<Bytes>>),
    Mutual(h2::client::SendRequest<Bytes>),
}

type Driver = Pin<Box<dyn Future<Output = Result<(), ConnectionError>> + Send>>;

/// Why there is no connection, or no more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("cannot connect to {address}")]
    Connect { address: String, source: io::Error },
    #[error("no TLS")]
    Tls(#[source] io::Error),
    #[error("the operator has no certificate")]
    NoCertificate,
    #[error("the pod cannot be named in a certificate")]
    Name(#[source] rustls::pki_types::InvalidDnsNameError),
    #[error("no answer")]
    Http1(#[source] hyper::Error),
    #[error("no answer")]
    Http2(#[source] h2::Error),
    #[error("it was closed")]
    Closed,
    /// An answer began, and went wrong.
    #[error("{0}")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("open", &self.driver.is_some()).finish_non_exhaustive()
    }
}

impl Connection {
    /// Plain HTTP/1.1 with whoever answers.
    pub(super) async fn plain(address: &str) -> Result<Self, ConnectionError> {
        let stream = connect(address).await?;
        let http = http1::Builder::new().read_buf_exact_size(Some(READ_BUFFER)).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = http.map_err(ConnectionError::Http1)?;
        let driver: Driver = Box::pin(connection.map(|ended| ended.map_err(ConnectionError::Http1)));
        Ok(Self { sender: Sender::Plain(sender), driver: Some(driver), not_after: None })
    }

    /// HTTP/2 over TLS, with nobody but this pod's agent.
    pub(super) async fn mutual(
        address: &str,
        pod: &PodIdentity,
        credentials: &Credentials,
    ) -> Result<Self, ConnectionError> {
        let name = ServerName::try_from(pod.dns_name()).map_err(ConnectionError::Name)?;
        let stream = connect(address).await?;
        let connector = TlsConnector::from(credentials.client.clone());
        let stream = connector.connect(name, stream).await.map_err(ConnectionError::Tls)?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let not_after = shown.and_then(|shown| {
            let (_, certificate) = X509Certificate::from_der(shown).ok()?;
            u64::try_from(certificate.validity().not_after.timestamp()).ok()
        });
        let not_after = not_after.map_or(credentials.not_after, |shown| shown.min(credentials.not_after));
        // An agent has one question at a time to answer, and nothing to say unasked. Heads are short: a table of those
        // that came before would be larger than what it saves.
        let mut http = h2::client::Builder::new();
        http.enable_push(false).initial_max_send_streams(1).max_concurrent_reset_streams(1).header_table_size(0);
        http.initial_window_size(WINDOW).initial_connection_window_size(WINDOW).max_header_list_size(MAX_HEAD_BYTES);
        let (sender, connection) = http.handshake(stream).await.map_err(ConnectionError::Http2)?;
        let driver: Driver = Box::pin(connection.map(|ended| ended.map_err(ConnectionError::Http2)));
        Ok(Self { sender: Sender::Mutual(sender), driver: Some(driver), not_after: Some(not_after) })
    }

    /// Whether something may be sent.
    pub(super) fn is_usable(&mut self, now: u64) -> bool {
        self.closed().now_or_never().is_none() && self.not_after.is_none_or(|not_after| now < not_after)
    }

    /// Waits until it ends: true if that is because nothing was heard of the other side for too long.
    pub(super) async fn closed(&mut self) -> bool {
        let Some(driver) = &mut self.driver else { return false };
        let ended = driver.await;
        self.driver = None;
        ended.is_err_and(|error| error.is_silence())
    }

    /// What a request on this connection is for: a path, or a whole URI.
    pub(super) fn target(&self, address: &str, path: &str) -> String {
        match &self.sender {
            Sender::Plain(_) => path.to_owned(),
            Sender::Mutual(_) => format!("https://{address}{path}"),
        }
    }

    /// Whether the host stands there, and not in a field.
    pub(super) fn names_host_in_target(&self) -> bool {
        matches!(self.sender, Sender::Mutual(_))
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn send(&mut self, request: Request<Bytes>) -> Result<Response<Bytes>, ConnectionError> {
        let Self { sender, driver, .. } = self;
        let mut exchange = pin!(match sender {
            Sender::Plain(sender) => Either::Left(ask_plain(sender, request)),
            Sender::Mutual(sender) => Either::Right(ask_mutual(sender, request)),
        });
        poll_fn(|context| {
            let asked = exchange.as_mut().poll(context);
            if let Poll::Ready(Ok(answer)) = asked {
                return Poll::Ready(Ok(answer));
            }
            let ended = drive(driver, context);
            let answer = if asked.is_pending() { exchange.as_mut().poll(context) } else { asked };
            match (answer, ended) {
                (Poll::Ready(Ok(answer)), _) => Poll::Ready(Ok(answer)),
                // Whoever asked hears that the connection is over; why, only the driver knows.
                (_, Some(Err(cause))) => Poll::Ready(Err(cause)),
                (Poll::Ready(Err(error)), _) => Poll::Ready(Err(error)),
                (Poll::Pending, Some(Ok(()))) => Poll::Ready(Err(ConnectionError::Closed)),
                (Poll::Pending, None) => Poll::Pending,
            }
        })
        .await
    }
}

/// Moves bytes; how the connection ended, if it did.
fn drive(driver: &mut Option<Driver>, context: &mut Context<'_>) -> Option<Result<(), ConnectionError>> {
    let Some(open) = driver else { return Some(Ok(())) };
    match open.as_mut().poll(context) {
        Poll::Ready(ended) => {
            *driver = None;
            Some(ended)
        }
        Poll::Pending => None,
    }
}

impl ConnectionError {
    /// The kernel has asked the other side whether it is there, and heard nothing.
    fn is_silence(&self) -> bool {
        let cause = match self {
            Self::Http1(error) => std::error::Error::source(error).and_then(<dyn std::error::Error>::downcast_ref),
            Self::Http2(error) => error.get_io(),
            _ => None,
        };
        cause.is_some_and(|cause: &io::Error| {
            matches!(
                cause.kind(),
                io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
            )
        })
    }
}

async fn ask_plain(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, ConnectionError> {
    sender.ready().await.map_err(ConnectionError::Http1)?;
    let response = sender.send_request(request.map(Full::new)).await.map_err(ConnectionError::Http1)?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(ConnectionError::Answer)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

async fn ask_mutual(
    sender: &mut h2::client::SendRequest<Bytes>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, ConnectionError> {
    poll_fn(|context| sender.poll_ready(context)).await.map_err(ConnectionError::Http2)?;
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head, ());
    let (response, mut rest) = sender.send_request(request, body.is_empty()).map_err(ConnectionError::Http2)?;
    if !body.is_empty() {
        rest.send_data(body, true).map_err(ConnectionError::Http2)?;
    }
    let (head, mut body) = response.await.map_err(ConnectionError::Http2)?.into_parts();
    let mut answer = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part.map_err(|error| ConnectionError::Answer(error.into()))?;
        if answer.len() + part.len() > MAX_ANSWER_BYTES {
            return Err(ConnectionError::Answer("it is longer than any answer".into()));
        }
        body.flow_control().release_capacity(part.len()).map_err(ConnectionError::Http2)?;
        answer.extend_from_slice(&part);
    }
    Ok(Response::from_parts(head, answer.freeze()))
}

async fn connect(address: &str) -> Result<TcpStream, ConnectionError> {
    let failed = |source| ConnectionError::Connect { address: address.to_owned(), source };
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    // A pod that is gone without a word is noticed although nothing is sent.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(KEEPALIVE_PROBES);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(failed)?;
    Ok(stream)
}
