//! One fetch of a key set over TLS. The given authorities must have signed the server's certificate.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    Request, StatusCode,
    header::{ACCEPT, HOST},
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, crypto::ring};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use crate::https::{HttpsServer, InvalidServer, trusted};

/// The flag with the authorities.
const CA: &str = "--jwks-ca";

/// The timeout of the whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The largest response that the agent reads.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The URL, and the authorities to trust for it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    server: HttpsServer,
    /// PEM, or the path of a PEM file, read for each fetch.
    ca: String,
}

impl Source {
    /// Parses the flags, and reads the authorities once.
    ///
    /// # Errors
    ///
    /// Returns the name of the wrong flag, and what its value must be.
    pub(crate) fn new(url: &str, ca: String) -> Result<Self, InvalidServer> {
        let expected = "such as https://issuer.example/.well-known/jwks.json: over http, anyone on the network path could \
                        replace the keys";
        let server = HttpsServer::new("--jwks-url", url, expected, |_| true)?;
        trusted(CA, &ca)?;
        Ok(Self { server, ca })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url.to_string()
    }

    /// Fetches the URL and returns the body.
    ///
    /// # Errors
    ///
    /// Returns the reason why the request failed, or a status other than 200.
    pub(super) async fn fetch(&self) -> Result<String, String> {
        let exchange = timeout(TIMEOUT, self.exchange());
        exchange.await.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")))
    }

    async fn exchange(&self) -> Result<String, String> {
        let HttpsServer { url, host, port, name } = &self.server;
        let connect = |error| format!("cannot reach {host}:{port}: {error}");
        let roots = trusted(CA, &self.ca).map_err(|error| error.to_string())?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(connect)?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name.clone(), stream).await.map_err(connect)?;
        let http = |error: hyper::Error| format!("not an HTTP response: {error}");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        let connection = tokio::spawn(connection);
        let request = Request::get(url.path_and_query().map_or("/", |path| path.as_str()))
            .header(HOST, self.server.authority())
            .header(ACCEPT, "application/json")
            .body(Empty::<Bytes>::new())
            .expect("the parts of a URL are valid in a request");
        let (head, body) = sender.send_request(request).await.map_err(http)?.into_parts();
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
        connection.abort();
        if head.status != StatusCode::OK {
            let hint = if head.status.is_redirection() { ": configure the URL that it redirects to" } else { "" };
            return Err(format!("the response status is {}{hint}", head.status));
        }
        let body = body.map_err(|error| format!("cannot read the response: {error}"))?.to_bytes();
        String::from_utf8(body.into()).map_err(|_| "the response is not UTF-8".to_owned())
    }
}
