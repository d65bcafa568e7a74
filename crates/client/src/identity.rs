//! The agent's identity: a certificate for its pod, requested at the start and renewed before it expires.
//!
//! The pod's service account token identifies the pod. The operator validates the token and certifies a key that the
//! agent generates and never exports. Each reply also contains the authorities to trust from then on. This module
//! delays neither requests nor the start: without a certificate, the control port stays closed and the rules stay in
//! force.

mod ask;
#[cfg(test)]
mod fuzz;
mod renewal;

use std::{convert::Infallible, fs, path::PathBuf};

use http::Uri;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use self::{ask::AskError, renewal::Issuer};
use crate::control::{Credentials, Tls, certificates};

/// The default port of an https URL.
const HTTPS: u16 = 443;

/// The identity service and the credentials for it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Host and port, as in the URL.
    authority: String,
    host: String,
    port: u16,
    name: ServerName<'static>,
    trusted: Vec<CertificateDer<'static>>,
    token_file: PathBuf,
}

/// An invalid flag of the identity service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value}: {problem}")]
pub struct InvalidIdentity {
    flag: &'static str,
    value: String,
    problem: String,
}

impl Identity {
    /// Parses the flags. `ca` is PEM, or the path of a PEM file.
    pub(crate) fn new(url: &str, ca: &str, token_file: PathBuf) -> Result<Self, InvalidIdentity> {
        let of_url = |problem: String| InvalidIdentity { flag: "--identity-url", value: url.to_owned(), problem };
        let uri: Uri = url.parse().map_err(|error| of_url(format!("not a URL: {error}")))?;
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            // Neither the log nor the service may get the password.
            let (value, problem) =
                ("the given URL".to_owned(), "it must not have a user: the agent sends none".to_owned());
            return Err(InvalidIdentity { flag: "--identity-url", value, problem });
        }
        let (Some("https"), Some(authority), "/", None) = (uri.scheme_str(), uri.authority(), uri.path(), uri.query())
        else {
            return Err(of_url("it must be an https URL without a path".to_owned()));
        };
        // The host of a URL has brackets around an IPv6 address.
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|error| of_url(error.to_string()))?;

        let given = if ca.contains("-----BEGIN") { "the given PEM" } else { ca };
        let of_ca = |problem| InvalidIdentity { flag: "--identity-ca", value: given.to_owned(), problem };
        let pem = if ca.contains("-----BEGIN") {
            ca.as_bytes().to_vec()
        } else {
            fs::read(ca).map_err(|error| of_ca(format!("cannot be read: {error}")))?
        };
        let trusted = certificates(&pem).map_err(of_ca)?;
        let port = authority.port_u16().unwrap_or(HTTPS);
        Ok(Self { authority: authority.to_string(), host, port, name, trusted, token_file })
    }

    /// Renews the control port's credentials forever.
    pub(crate) async fn keep(self, tls: &Tls) -> Infallible {
        renewal::keep(Keeper { identity: self, tls }).await
    }

    async fn obtain(&mut self) -> Result<Credentials, AskError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        // The operator chooses the name in the certificate.
        params.distinguished_name = DistinguishedName::new();
        let csr = params.serialize_request(&key)?.pem()?;
        let reply = self.ask(csr).await?;
        let chain = certificates(reply.certificate.as_bytes()).map_err(AskError::Garbage)?;
        let authorities = certificates(reply.authorities.as_bytes()).map_err(AskError::Garbage)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let credentials = Credentials::new(chain, key, authorities.clone())?;
        self.trusted = authorities;
        Ok(credentials)
    }
}

struct Keeper<'a> {
    identity: Identity,
    tls: &'a Tls,
}

impl Issuer for Keeper<'_> {
    type Error = AskError;

    async fn obtain(&mut self) -> Result<u64, AskError> {
        match self.identity.obtain().await {
            Ok(credentials) => {
                let not_after = credentials.not_after;
                self.tls.install(credentials);
                Ok(not_after)
            }
            Err(error) => {
                self.tls.rejected();
                Err(error)
            }
        }
    }

    async fn called(&self, failure: &AskError) {
        match failure {
            AskError::Connect { .. } | AskError::Timeout { .. } | AskError::Http(_) => self.tls.called().await,
            AskError::Refused { status, .. } if status.is_server_error() => self.tls.called().await,
            // The service refused, or the agent sent no request. A call from the operator does not help in either case.
            _ => std::future::pending().await,
        }
    }

    /// TLS uses the same clock to check whether a certificate is valid.
    fn now(&self) -> u64 {
        UnixTime::now().as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_flags_are_refused_with_the_reason() {
        let pem = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        let identity = |url: &str, ca: &str| Identity::new(url, ca, "/token".into());
        let good = identity("https://weir-operator-identity.weir-system.svc", &pem).unwrap();
        assert_eq!((good.host.as_str(), good.port), ("weir-operator-identity.weir-system.svc", 443));
        let good = identity("https://[::1]:8492/", &pem).unwrap();
        assert_eq!((good.host.as_str(), good.port), ("::1", 8492));
        for (url, ca, why) in [
            ("http://a", pem.as_str(), "--identity-url http://a: it must be an https URL without a path"),
            ("https://a/path", &pem, "without a path"),
            ("", &pem, "not a URL"),
            ("https://ann:secret@a", &pem, "--identity-url the given URL: it must not have a user"),
            ("https://@a", &pem, "it must not have a user"),
            ("https://a", "/nowhere", "--identity-ca /nowhere: cannot be read"),
            ("https://a", "-----BEGIN NOTHING-----", "--identity-ca the given PEM: "),
        ] {
            let error = identity(url, ca).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{error}");
        }
    }
}
