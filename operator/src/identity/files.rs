//! The operator's side of mutual TLS from files that others write: in standalone mode it has no authority of its own.
//!
//! What is in use changes only to something that works as a whole, and only for connections that come later.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Calling, Held, Sender};

/// Which files say who is who; PEM all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities whose agents are believed.
    pub agent_ca: PathBuf,
    /// The certificate that agents are shown, with intermediates.
    pub client_cert: PathBuf,
    /// Its private key.
    pub client_key: PathBuf,
}

/// Files with which no agent can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidTls {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

impl fmt::Display for InvalidTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.flag, self.path.display(), self.problem)
    }
}

impl std::error::Error for InvalidTls {}

type Content = Result<Vec<u8>, String>;

/// The files, and what follows from them.
#[derive(Debug)]
pub(crate) struct CallingFiles {
    files: Arc<TlsFiles>,
    /// Names what was read last, good or bad: a key need not be in memory twice.
    seen: [u8; 32],
    /// Why that is of no use.
    problem: Option<InvalidTls>,
    current: Sender<Calling>,
}

impl CallingFiles {
    /// Reads them for the first time.
    ///
    /// # Errors
    ///
    /// They are not all there and good.
    pub(crate) fn open(files: TlsFiles) -> Result<Self, InvalidTls> {
        let contents = files.contents();
        let (seen, calling) = (digest(&contents), files.calling(&contents)?);
        let current = Sender::new(Some(Arc::new(calling)));
        Ok(Self { files: Arc::new(files), seen, problem: None, current })
    }

    /// Reads them again. If they changed to something that is no good, what was in use stays.
    ///
    /// # Errors
    ///
    /// That is so.
    pub(crate) fn refresh(&mut self) -> Result<(), InvalidTls> {
        let contents = self.files.contents();
        let seen = digest(&contents);
        if seen != self.seen {
            match self.files.calling(&contents) {
                Ok(calling) => {
                    tracing::info!(expires = calling.not_after, "certificates for agents loaded");
                    self.current.send_replace(Some(Arc::new(calling)));
                    self.problem = None;
                }
                Err(problem) => self.problem = Some(problem),
            }
            self.seen = seen;
        }
        self.problem.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn held(&self) -> Held {
        self.current.subscribe()
    }

    pub(crate) fn files(&self) -> &Arc<TlsFiles> {
        &self.files
    }
}

impl TlsFiles {
    /// All of them.
    pub(crate) fn paths(&self) -> [&Path; 3] {
        [&self.agent_ca, &self.client_cert, &self.client_key]
    }

    fn contents(&self) -> [Content; 3] {
        self.paths().map(|path| std::fs::read(path).map_err(|error| format!("cannot be read: {error}")))
    }

    fn calling(&self, [agent_ca, client_cert, client_key]: &[Content; 3]) -> Result<Calling, InvalidTls> {
        let of = |flag, path: &PathBuf| {
            let path = path.clone();
            move |problem: String| InvalidTls { flag, path: path.clone(), problem }
        };
        let of_ca = of("--agent-ca", &self.agent_ca);
        let of_cert = of("--client-cert", &self.client_cert);
        let of_key = of("--client-key", &self.client_key);

        let mut roots = RootCertStore::empty();
        for authority in certificates(agent_ca).map_err(&of_ca)? {
            roots.add(authority).map_err(|error| of_ca(format!("holds no authority: {error}")))?;
        }
        let chain = certificates(client_cert).map_err(&of_cert)?;
        let (_, leaf) =
            X509Certificate::from_der(&chain[0]).map_err(|error| of_cert(format!("holds no certificate: {error}")))?;
        let not_after = u64::try_from(leaf.validity().not_after.timestamp()).unwrap_or(0);
        let key = client_key.as_ref().map_err(|problem| of_key(problem.clone()))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| of_key(format!("holds no private key in PEM without a password: {error}")))?;
        Calling::new(roots, chain, key, not_after).map_err(|error| {
            let cert = self.client_cert.display();
            of_key(format!("is not the key of --client-cert {cert}: name the two that belong together ({error})"))
        })
    }
}

fn digest(contents: &[Content; 3]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for content in contents {
        let (mark, bytes) = match content {
            Ok(bytes) => (b'+', bytes.as_slice()),
            Err(problem) => (b'-', problem.as_bytes()),
        };
        digest.update([mark]);
        digest.update((bytes.len() as u64).to_le_bytes());
        digest.update(bytes);
    }
    digest.finalize().into()
}

/// At least one.
fn certificates(pem: &Content) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = pem.as_ref().map_err(Clone::clone)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|error| format!("is not PEM: {error}"))?;
    if certificates.is_empty() { Err("holds no certificate in PEM".to_owned()) } else { Ok(certificates) }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
