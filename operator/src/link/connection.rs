//! One connection to one agent: HTTP/1.1 in plain text, or HTTP/2 over mutual TLS ([`weir_http2`]).
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

use bytes::Bytes;
use futures::FutureExt;
use http::header::HOST;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::tls::TlsStream;
use crate::identity::{Calling, Peer};

/// How long a silent peer is believed to be there, and how often it is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 2;
/// Answers of agents are short, and connections many.
const READ_BUFFER: usize = 4096;
/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// An open connection. It is closed with its value.
#[derive(Debug)]
pub(super) enum Connection {
    Plain(Plain),
    Mutual(Box<Mutual>),
}

#[derive(Debug)]
pub(super) struct Plain {
    sender: http1::SendRequest<Full<Bytes>>,
    /// What moves the bytes; none once it has ended.
    driver: Option<Driver>,
}

type Driver = Pin<Box<http1::Connection<TokioIo<TcpStream>, Full<Bytes>>>>;

#[derive(Debug)]
pub(super) struct Mutual {
    http: weir_http2::Connection<TlsStream<TcpStream>>,
    /// Until when its certificates are good, in seconds of Unix time.
    not_after: u64,
}

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
    Http2(#[source] weir_http2::Error),
    #[error("it was closed")]
    Closed,
    /// An answer began, and went wrong.
    #[error(transparent)]
    Answer(Box<dyn std::error::Error + Send + Sync>),
}

impl Connection {
    /// Plain HTTP/1.1 with any peer.
    pub(super) async fn plain(address: &str) -> Result<Self, ConnectionError> {
        let stream = connect(address).await?;
        let http = http1::Builder::new().read_buf_exact_size(Some(READ_BUFFER)).handshake(TokioIo::new(stream)).await;
        let (sender, driver) = http.map_err(ConnectionError::Http1)?;
        Ok(Self::Plain(Plain { sender, driver: Some(Box::pin(driver)) }))
    }

    /// HTTP/2 over TLS, with nobody but this agent.
    pub(super) async fn mutual(address: &str, peer: &Peer, credentials: &Calling) -> Result<Self, ConnectionError> {
        let name = peer.server_name().map_err(ConnectionError::Name)?;
        let stream = connect(address).await?;
        let stream =
            TlsStream::connect(credentials.client.clone(), name, stream).await.map_err(ConnectionError::Tls)?;
        let not_after = stream.certificate().and_then(|shown| {
            let (_, certificate) = X509Certificate::from_der(shown).ok()?;
            u64::try_from(certificate.validity().not_after.timestamp()).ok()
        });
        let not_after = not_after.map_or(credentials.not_after, |shown| shown.min(credentials.not_after));
        Ok(Self::Mutual(Box::new(Mutual { http: weir_http2::Connection::new(stream), not_after })))
    }

    /// Whether something may be sent.
    pub(super) fn is_usable(&mut self, now: u64) -> bool {
        let is_good = match self {
            Self::Plain(_) => true,
            Self::Mutual(mutual) => mutual.is_good(now),
        };
        is_good && self.closed().now_or_never().is_none()
    }

    /// Waits until it ends: true if that is because nothing was heard of the other side for too long.
    pub(super) async fn closed(&mut self) -> bool {
        match self {
            Self::Plain(plain) => {
                let Some(driver) = &mut plain.driver else { return false };
                let ended = driver.await;
                plain.driver = None;
                ended.is_err_and(|error| ConnectionError::Http1(error).is_silence())
            }
            Self::Mutual(mutual) => ConnectionError::Http2(mutual.http.closed().await).is_silence(),
        }
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn send(&mut self, request: weir_http2::Request<'_>) -> Result<Response<Bytes>, ConnectionError> {
        match self {
            // On the heap, because the other one is what thousands of calls need.
            Self::Plain(plain) => Box::pin(plain.send(request)).await,
            Self::Mutual(mutual) => mutual.http.send(request).await.map_err(told),
        }
    }
}

impl Mutual {
    /// Whether its certificates are still good.
    pub(super) fn is_good(&self, now: u64) -> bool {
        now < self.not_after
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn begin(&mut self, request: weir_http2::Request<'_>) -> Result<Response<()>, ConnectionError> {
        self.http.begin(request).await.map_err(told)
    }

    /// Waits for more of the answer's body, and moves it to the end of `body`; false at its end.
    pub(super) async fn more(&mut self, body: &mut Vec<u8>) -> Result<bool, ConnectionError> {
        self.http.more(body).await.map_err(told)
    }
}

fn told(error: weir_http2::Error) -> ConnectionError {
    match error {
        weir_http2::Error::Answer(_) => ConnectionError::Answer(Box::new(error)),
        error => ConnectionError::Http2(error),
    }
}

impl Plain {
    async fn send(&mut self, request: weir_http2::Request<'_>) -> Result<Response<Bytes>, ConnectionError> {
        let weir_http2::Request { method, authority, path, fields, body } = request;
        let mut request = Request::builder().method(method).uri(path).header(HOST, authority);
        for (name, value) in fields {
            request = request.header(name, *value);
        }
        let request = request.body(body).map_err(|error| ConnectionError::Answer(error.into()))?;
        let Self { sender, driver } = self;
        let mut exchange = pin!(ask(sender, request));
        poll_fn(|context| {
            let asked = exchange.as_mut().poll(context);
            if let Poll::Ready(Ok(answer)) = asked {
                return Poll::Ready(Ok(answer));
            }
            let ended = drive(driver, context);
            let answer = if asked.is_pending() { exchange.as_mut().poll(context) } else { asked };
            match (answer, ended) {
                (Poll::Ready(Ok(answer)), _) => Poll::Ready(Ok(answer)),
                // The caller learns that the connection is over; only the driver knows why.
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
            Some(ended.map_err(ConnectionError::Http1))
        }
        Poll::Pending => None,
    }
}

impl ConnectionError {
    /// The kernel has asked the other side whether it is there, and heard nothing.
    pub(super) fn is_silence(&self) -> bool {
        let cause = match self {
            Self::Http1(error) => std::error::Error::source(error).and_then(<dyn std::error::Error>::downcast_ref),
            Self::Http2(weir_http2::Error::Io(error)) => Some(error),
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

async fn ask(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, ConnectionError> {
    sender.ready().await.map_err(ConnectionError::Http1)?;
    let response = sender.send_request(request.map(Full::new)).await.map_err(ConnectionError::Http1)?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(ConnectionError::Answer)?;
    Ok(Response::from_parts(head, body.to_bytes()))
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
