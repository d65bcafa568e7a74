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

use std::{convert::Infallible, path::PathBuf};

use http::Uri;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use self::{ask::AskError, renewal::Issuer};
use crate::{
    control::{Credentials, Tls, certificates},
    https::{ExchangeError, HttpsServer, InvalidServer, authorities},
};

/// The identity service and the credentials for it.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    server: HttpsServer,
    trusted: Vec<CertificateDer<'static>>,
    token_file: PathBuf,
}

impl Identity {
    /// Parses the flags. `ca` is PEM, or the path of a PEM file.
    pub(crate) fn new(url: &str, ca: &str, token_file: PathBuf) -> Result<Self, InvalidServer> {
        let is_bare = |url: &Uri| url.path() == "/" && url.query().is_none();
        let server = HttpsServer::new("--identity-url", url, "without a path", is_bare)?;
        Ok(Self { server, trusted: authorities("--identity-ca", ca)?, token_file })
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
            AskError::Exchange(error) if !matches!(error, ExchangeError::Body(_)) => self.tls.called().await,
            AskError::Refused { status, .. } if status.is_server_error() => self.tls.called().await,
            // The service answered, or the agent sent no request. A call from the operator does not help in either case.
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
    fn the_service_has_a_url_without_a_path_and_authorities() {
        let pem = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap().cert.pem();
        assert!(Identity::new("https://a:8492/", &pem, "/token".into()).is_ok());
        for (url, ca, why) in [
            ("https://a/path", pem.as_str(), "--identity-url https://a/path: it must be an https URL without a path"),
            ("https://a/?x", &pem, "--identity-url https://a/?x: it must be an https URL without a path"),
            ("https://a", "/nowhere", "--identity-ca /nowhere: cannot be read"),
        ] {
            let error = Identity::new(url, ca, "/token".into()).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
