//! The servers to which a program connects over https: their URLs, and the authorities that sign their certificates.

use std::{fs, io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Uri, response::Parts};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

use crate::control::certificates;

/// The default port of an https URL.
const HTTPS: u16 = 443;

/// The timeout of a whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A server, as its URL names it.
#[derive(Clone, Debug)]
pub(crate) struct HttpsServer {
    pub(crate) url: Uri,
    host: String,
    port: u16,
    name: ServerName<'static>,
}

/// An invalid flag of a server: its URL, or the authorities that sign its certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value}: {problem}")]
pub struct InvalidServer {
    flag: &'static str,
    value: String,
    problem: String,
}

/// The reason why a program got no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("cannot reach {to}: {source}")]
    Connect { to: String, source: io::Error },
    #[error("no answer from {to} within {TIMEOUT:?}")]
    Timeout { to: String },
    #[error("not an HTTP response: {0}")]
    Http(#[from] hyper::Error),
    #[error("cannot read the response: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
}

impl HttpsServer {
    /// Parses the URL of a flag. The operator has the same rules, in `operator/src/host.rs`. `fits` checks the rest of the
    /// URL, and `expected` describes it.
    ///
    /// # Errors
    ///
    /// Returns the name of the flag, and what its value must be.
    pub(crate) fn new(
        flag: &'static str,
        text: &str,
        expected: &str,
        fits: impl Fn(&Uri) -> bool,
    ) -> Result<Self, InvalidServer> {
        let invalid = |problem: String| InvalidServer { flag, value: text.to_owned(), problem };
        let url: Uri = text.parse().map_err(|error| invalid(format!("not a URL: {error}")))?;
        if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            // Neither the log nor another server may get the password.
            let (value, problem) =
                ("the given URL".to_owned(), "it must not have a user: the agent sends none".to_owned());
            return Err(InvalidServer { flag, value, problem });
        }
        let Some(host) = url.host().filter(|_| url.scheme_str() == Some("https") && fits(&url)) else {
            return Err(invalid(format!("it must be an https URL {expected}")));
        };
        let Some(port) = port(&url) else {
            return Err(invalid("its port must be a number from 1 to 65535".to_owned()));
        };
        // The host of a URL has brackets around an IPv6 address.
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { url, host, port, name })
    }

    /// The host and the port, as in the URL.
    pub(crate) fn authority(&self) -> &str {
        self.url.authority().map_or("", |authority| authority.as_str())
    }

    /// Sends one request on a new connection, and reads a response whose body has at most `most` bytes. One of the
    /// authorities must have signed the server's certificate.
    ///
    /// # Errors
    ///
    /// There is no such response within [`TIMEOUT`].
    pub(crate) async fn exchange(
        &self,
        roots: RootCertStore,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<(Parts, Bytes), ExchangeError> {
        let to = || self.authority().to_owned();
        let connect = |source| ExchangeError::Connect { to: to(), source };
        let exchange = async {
            let mut tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("ring supports TLS")
                .with_root_certificates(roots)
                .with_no_client_auth();
            tls.resumption = Resumption::disabled();
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(connect)?;
            let tls = TlsConnector::from(Arc::new(tls));
            let stream = tls.connect(self.name.clone(), stream).await.map_err(connect)?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            let connection = tokio::spawn(connection);
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, most).collect().await;
            connection.abort();
            Ok((head, body.map_err(ExchangeError::Body)?.to_bytes()))
        };
        timeout(TIMEOUT, exchange).await.unwrap_or_else(|_| Err(ExchangeError::Timeout { to: to() }))
    }
}

/// Returns the port of a URL, or `None` if it is not valid. The library accepts every text there.
fn port(url: &Uri) -> Option<u16> {
    let after = url.authority()?.as_str().strip_prefix(url.host()?)?;
    match after.strip_prefix(':').unwrap_or_default() {
        "" => Some(HTTPS),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok().filter(|port| *port > 0),
        _ => None,
    }
}

/// Returns the authorities of a flag, whose value is PEM, or the path of a PEM file.
///
/// # Errors
///
/// The file cannot be read, or there is no certificate in PEM.
pub(crate) fn authorities(flag: &'static str, value: &str) -> Result<Vec<CertificateDer<'static>>, InvalidServer> {
    let read = if is_pem(value) { Ok(value.as_bytes().to_vec()) } else { fs::read(value) };
    let read = read.map_err(|error| format!("cannot be read: {error}")).and_then(|pem| certificates(&pem));
    read.map_err(|problem| InvalidServer::of_authorities(flag, value, problem))
}

/// Returns the authorities of a flag, for a client that trusts them.
///
/// # Errors
///
/// As [`authorities`]. Also, a certificate cannot be that of an authority.
pub(crate) fn trusted(flag: &'static str, value: &str) -> Result<RootCertStore, InvalidServer> {
    roots(&authorities(flag, value)?).map_err(|problem| InvalidServer::of_authorities(flag, value, problem))
}

/// Returns the authorities for a client that trusts them.
///
/// # Errors
///
/// A certificate cannot be that of an authority.
pub(crate) fn roots(authorities: &[CertificateDer<'static>]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

impl InvalidServer {
    fn of_authorities(flag: &'static str, value: &str, problem: String) -> Self {
        let value = if is_pem(value) { "the given PEM" } else { value };
        Self { flag, value: value.to_owned(), problem }
    }
}

fn is_pem(value: &str) -> bool {
    value.contains("-----BEGIN")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(text: &str) -> Result<HttpsServer, InvalidServer> {
        HttpsServer::new("--url", text, "without a path", |url| url.path() == "/")
    }

    #[test]
    fn a_url_names_a_host_and_a_port() {
        for (url, host, port) in [
            ("https://weir-operator-identity.weir-system.svc", "weir-operator-identity.weir-system.svc", 443),
            ("https://[::1]:8443/?x=1", "::1", 8443),
            ("https://[::1]", "::1", 443),
            ("https://a:/", "a", 443),
        ] {
            let server = server(url).unwrap();
            assert_eq!((server.host.as_str(), server.port), (host, port), "{url}");
        }
        for (url, why) in [
            ("http://a", "--url http://a: it must be an https URL without a path"),
            ("https://a/path", "it must be an https URL without a path"),
            ("a", "it must be an https URL"),
            ("", "not a URL"),
            ("https://ann:secret@a", "--url the given URL: it must not have a user"),
            ("https://@a", "it must not have a user"),
            ("https://a..b", "--url https://a..b: invalid"),
            ("https://-", "--url https://-: invalid"),
            ("https://a:99999", "--url https://a:99999: its port must be a number from 1 to 65535"),
            ("https://a:0", "its port must be a number"),
            ("https://a:+80", "its port must be a number"),
        ] {
            let error = server(url).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn authorities_are_pem_or_the_path_of_a_file() {
        let pem = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        assert_eq!(trusted("--ca", &pem).unwrap().len(), 1);
        for (value, why) in
            [("/nowhere", "--ca /nowhere: cannot be read"), ("-----BEGIN NOTHING-----", "--ca the given PEM: ")]
        {
            let error = trusted("--ca", value).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
