//! One connection to one agent: HTTP/1.1 in plain text, or HTTP/2 over mutual TLS.
//!
//! It belongs to one link and is made for one pod: a connection is never used for another pod that has got the same
//! address. It lives at most as long as the certificates that it was made with.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::identity::{Credentials, PodIdentity};

/// How long a silent peer is believed to be there, and how often it is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;
/// Answers of agents are short, and connections many.
const READ_BUFFER: usize = 4096;

/// An open connection. It is closed with its value.
#[derive(Debug)]
pub(super) struct Connection {
    sender: Sender,
    driver: Driver,
    /// Until when its certificates are good, in seconds of Unix time.
    not_after: Option<u64>,
}

#[derive(Debug)]
enum Sender {
    Plain(http1::SendRequest<Full<Bytes>>),
    Mutual(http2::SendRequest<Full<Bytes>>),
}

/// What moves the bytes.
#[derive(Debug)]
struct Driver(JoinHandle<hyper::Result<()>>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why there is no connection, or no more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("cannot connect to {address}")]
    Connect { address: String, source: io::Error },
    #[error("no TLS")]
    Tls(#[source] io::Error),
    #[error("the pod cannot be named in a certificate")]
    Name(#[source] rustls::pki_types::InvalidDnsNameError),
    #[error("no answer")]
    Http(#[source] hyper::Error),
}

impl Connection {
    /// Plain HTTP/1.1 with whoever answers.
    pub(super) async fn plain(address: &str) -> Result<Self, ConnectionError> {
        let stream = connect(address).await?;
        let http = http1::Builder::new().read_buf_exact_size(Some(READ_BUFFER)).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = http.map_err(ConnectionError::Http)?;
        let driver = Driver(tokio::spawn(connection));
        Ok(Self { sender: Sender::Plain(sender), driver, not_after: None })
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
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(ConnectionError::Http)?;
        let driver = Driver(tokio::spawn(connection));
        Ok(Self { sender: Sender::Mutual(sender), driver, not_after: Some(not_after) })
    }

    /// Whether something may be sent.
    pub(super) fn is_usable(&self, now: u64) -> bool {
        let open = match &self.sender {
            Sender::Plain(sender) => !sender.is_closed(),
            Sender::Mutual(sender) => !sender.is_closed(),
        };
        open && self.not_after.is_none_or(|not_after| now < not_after)
    }

    /// Waits until the other side has closed it, or is gone.
    pub(super) async fn closed(&mut self) {
        // It ends with an error for whoever waits for an answer; here only the end counts.
        let _ = (&mut self.driver.0).await;
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

    pub(super) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let (answer, over) = match &mut self.sender {
            Sender::Plain(sender) => (ask_plain(sender, request).await, sender.is_closed()),
            Sender::Mutual(sender) => (ask_mutual(sender, request).await, sender.is_closed()),
        };
        let Err(error) = answer else { return answer };
        // Whoever asked hears that the connection is over; why, only the driver knows.
        let cause = if over { (&mut self.driver.0).await.ok().and_then(Result::err) } else { None };
        Err(cause.unwrap_or(error))
    }
}

async fn ask_plain(
    sender: &mut http1::SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    sender.ready().await?;
    sender.send_request(request).await
}

async fn ask_mutual(
    sender: &mut http2::SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Response<Incoming>> {
    sender.ready().await?;
    sender.send_request(request).await
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
