//! One fetch of a key set over TLS. The given authorities must have signed the server's certificate.

use std::{fs, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    Request, StatusCode, Uri,
    header::{ACCEPT, HOST},
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use crate::control::certificates;

/// The default port of an https URL.
const HTTPS: u16 = 443;

/// The timeout of the whole exchange.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest response that the agent reads.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The URL, and the authorities to trust for it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    url: Uri,
    host: String,
    port: u16,
    name: ServerName<'static>,
    /// PEM, or the path of a PEM file, read for each fetch.
    ca: String,
}

/// An invalid flag of the key set URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value}: {problem}")]
pub struct InvalidSource {
    flag: &'static str,
    value: String,
    problem: String,
}

impl Source {
    /// Parses the flags, and reads the authorities once.
    ///
    /// # Errors
    ///
    /// Returns the name of the wrong flag, and what its value must be.
    pub(crate) fn new(url: &str, ca: String) -> Result<Self, InvalidSource> {
        let of_url = |problem: String| InvalidSource { flag: "--jwks-url", value: url.to_owned(), problem };
        let uri: Uri = url.parse().map_err(|error| of_url(format!("not a URL: {error}")))?;
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            // Neither the log nor another server may get the password.
            let (value, problem) =
                ("the given URL".to_owned(), "it must not have a user: the agent sends none".to_owned());
            return Err(InvalidSource { flag: "--jwks-url", value, problem });
        }
        let Some(host) = uri.host().filter(|_| uri.scheme_str() == Some("https")) else {
            let problem = "it must be an https URL such as https://issuer.example/.well-known/jwks.json: over http, anyone on the \
                           network path could replace the keys";
            return Err(of_url(problem.to_owned()));
        };
        let Some(port) = port(&uri) else { return Err(of_url("its port must be a number from 1 to 65535".to_owned())) };
        // The host of a URL has brackets around an IPv6 address.
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|error| of_url(error.to_string()))?;
        let source = Self { url: uri, host, port, name, ca };
        source.authorities().map_err(|problem| {
            let value = if source.is_pem() { "the given PEM" } else { source.ca.as_str() };
            InvalidSource { flag: "--jwks-ca", value: value.to_owned(), problem }
        })?;
        Ok(source)
    }

    pub(crate) fn url(&self) -> String {
        self.url.to_string()
    }

    /// Fetches the URL and returns the body.
    ///
    /// # Errors
    ///
    /// Returns the reason why the request failed, or a status other than 200.
    pub(super) async fn fetch(&self) -> Result<String, String> {
        let exchange = timeout(PATIENCE, self.exchange());
        exchange.await.unwrap_or_else(|_| Err(format!("no answer within {PATIENCE:?}")))
    }

    async fn exchange(&self) -> Result<String, String> {
        let port = self.port;
        let connect = |error| format!("cannot reach {}:{port}: {error}", self.host);
        let roots = self.authorities().map_err(|problem| format!("--jwks-ca: {problem}"))?;
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect((self.host.as_str(), port)).await.map_err(connect)?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(self.name.clone(), stream).await.map_err(connect)?;
        let http = |error: hyper::Error| format!("not an HTTP response: {error}");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        let connection = tokio::spawn(connection);
        let authority = self.url.authority().map_or("", |authority| authority.as_str());
        let request = Request::get(self.url.path_and_query().map_or("/", |path| path.as_str()))
            .header(HOST, authority)
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

    fn is_pem(&self) -> bool {
        self.ca.contains("-----BEGIN")
    }

    fn authorities(&self) -> Result<RootCertStore, String> {
        let pem = if self.is_pem() {
            self.ca.as_bytes().to_vec()
        } else {
            fs::read(&self.ca).map_err(|error| format!("cannot be read: {error}"))?
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(&pem)? {
            roots.add(authority).map_err(|error| error.to_string())?;
        }
        Ok(roots)
    }
}

/// Returns the port of a URL; `None` if it is not valid. The library accepts every text there.
fn port(url: &Uri) -> Option<u16> {
    let after = url.authority()?.as_str().strip_prefix(url.host()?)?;
    match after.strip_prefix(':').unwrap_or_default() {
        "" => Some(HTTPS),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok().filter(|port| *port > 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_urls_and_authorities_are_refused_with_the_reason() {
        let pem = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        let source = |url: &str, ca: &str| Source::new(url, ca.to_owned());
        let port = |url: &str| source(url, &pem).unwrap().port;
        assert_eq!(source("https://[::1]:8443/keys?x=1", &pem).unwrap().host, "::1");
        assert_eq!((port("https://[::1]:8443/keys"), port("https://[::1]"), port("https://a:/keys")), (8443, 443, 443));
        for (url, ca, why) in [
            ("http://a/keys", pem.as_str(), "--jwks-url http://a/keys: it must be an https URL"),
            ("a", &pem, "it must be an https URL"),
            ("", &pem, "not a URL"),
            ("https://ann:secret@a/keys", &pem, "--jwks-url the given URL: it must not have a user"),
            ("https://@a/keys", &pem, "it must not have a user"),
            ("https://a..b/keys", &pem, "--jwks-url https://a..b/keys: invalid"),
            ("https://-/keys", &pem, "--jwks-url https://-/keys: invalid"),
            (
                "https://a:99999/keys",
                &pem,
                "--jwks-url https://a:99999/keys: its port must be a number from 1 to 65535",
            ),
            ("https://a:0/keys", &pem, "its port must be a number"),
            ("https://a:+80/keys", &pem, "its port must be a number"),
            ("https://a/keys", "/nowhere", "--jwks-ca /nowhere: cannot be read"),
            ("https://a/keys", "-----BEGIN NOTHING-----", "--jwks-ca the given PEM: "),
        ] {
            let error = source(url, ca).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
