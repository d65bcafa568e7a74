//! One request to the identity service over TLS. The given authorities must have signed the server's certificate.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    Request, StatusCode,
    header::{CONTENT_TYPE, HOST},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, client::Resumption, crypto::ring};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use weir_wire::{IDENTITY_PATH, IdentityRefusal, IdentityReply, IdentityRequest};

use super::Identity;
use crate::{control::InvalidCredentials, https::roots};

/// The timeout of the whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The largest reply that the agent reads.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// The reason why the agent got no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("--identity-token-file {}: {source}", path.display())]
    Token { path: PathBuf, source: io::Error },
    #[error("cannot reach {to}: {source}")]
    Connect { to: String, source: io::Error },
    #[error("no answer from {to} within {TIMEOUT:?}")]
    Timeout { to: String },
    #[error("not an HTTP response: {0}")]
    Http(#[from] hyper::Error),
    #[error("{status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("not a valid identity reply: {0}")]
    Garbage(String),
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] InvalidCredentials),
    #[error("cannot make a key: {0}")]
    Key(#[from] rcgen::Error),
}

impl Identity {
    /// Requests a certificate for the key of this signing request. Reads the token file each time.
    pub(super) async fn ask(&self, csr: String) -> Result<IdentityReply, AskError> {
        let token = std::fs::read_to_string(&self.token_file)
            .map_err(|source| AskError::Token { path: self.token_file.clone(), source })?;
        let request = IdentityRequest { csr, token: token.trim().to_owned() };
        let body = serde_json::to_vec(&request).expect("plain data has a JSON form");
        let exchange = timeout(TIMEOUT, self.exchange(body.into()));
        exchange.await.unwrap_or_else(|_| Err(AskError::Timeout { to: self.server.authority().to_owned() }))
    }

    async fn exchange(&self, body: Bytes) -> Result<IdentityReply, AskError> {
        let connect = |source| AskError::Connect { to: self.server.authority().to_owned(), source };
        let stream = TcpStream::connect((self.server.host.as_str(), self.server.port)).await.map_err(connect)?;
        let tls = TlsConnector::from(Arc::new(self.tls()?));
        let stream = tls.connect(self.server.name.clone(), stream).await.map_err(connect)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::post(IDENTITY_PATH)
            .header(HOST, self.server.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .expect("the authority of a URL is a valid header value");
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        connection.abort();
        let body = body.map_err(|error| AskError::Garbage(error.to_string()))?.to_bytes();
        if head.status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|error| AskError::Garbage(error.to_string()));
        }
        let refusal: Result<IdentityRefusal, _> = serde_json::from_slice(&body);
        let message = refusal.map_or_else(|_| "no reason given".to_owned(), |refusal| refusal.message);
        Err(AskError::Refused { status: head.status, message })
    }

    fn tls(&self) -> Result<ClientConfig, InvalidCredentials> {
        let roots = roots(&self.trusted).map_err(InvalidCredentials::Authorities)?;
        let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.resumption = Resumption::disabled();
        Ok(tls)
    }
}
