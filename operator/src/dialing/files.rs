//! The operator's side of mutual TLS with certificates from files. Standalone mode has no authority of its own.
//!
//! Changed files are used only if they are valid together, and only for new connections.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{Dialing, Held, Sender};

/// The files for mutual TLS, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities that sign agents' certificates.
    pub agent_ca: PathBuf,
    /// The certificate that the operator presents to agents, with intermediates.
    pub client_cert: PathBuf,
    /// The private key of this certificate.
    pub client_key: PathBuf,
}

/// An error: files that cannot be used for connections to agents.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {}: {problem}", path.display())]
pub struct InvalidTls {
    flag: &'static str,
    path: PathBuf,
    problem: String,
}

type Content = Result<Vec<u8>, String>;

/// The files, and the TLS configuration made from them.
#[derive(Debug)]
pub(crate) struct DialingFiles {
    files: Arc<TlsFiles>,
    /// A digest of the contents that were read last, valid or not. A digest avoids a second copy of the key in memory.
    seen: [u8; 32],
    /// The reason why the newest contents are not usable.
    problem: Option<InvalidTls>,
    current: Sender<Dialing>,
}

impl DialingFiles {
    /// Reads the files for the first time.
    ///
    /// # Errors
    ///
    /// A file is missing or invalid.
    pub(crate) fn open(files: TlsFiles) -> Result<Self, InvalidTls> {
        let contents = files.contents();
        let (seen, dialing) = (digest(&contents), files.dialing(&contents)?);
        let current = Sender::new(Some(Arc::new(dialing)));
        Ok(Self { files: Arc::new(files), seen, problem: None, current })
    }

    /// Reads the files again. If the new contents are invalid, the previous configuration stays in use.
    ///
    /// # Errors
    ///
    /// The files are invalid.
    pub(crate) fn refresh(&mut self) -> Result<(), InvalidTls> {
        let contents = self.files.contents();
        let seen = digest(&contents);
        if seen != self.seen {
            match self.files.dialing(&contents) {
                Ok(dialing) => {
                    tracing::info!(expires = dialing.not_after, "certificates for agents loaded");
                    self.current.send_replace(Some(Arc::new(dialing)));
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
    pub(crate) fn paths(&self) -> [&Path; 3] {
        [&self.agent_ca, &self.client_cert, &self.client_key]
    }

    fn contents(&self) -> [Content; 3] {
        self.paths().map(|path| std::fs::read(path).map_err(|error| format!("cannot be read: {error}")))
    }

    fn dialing(&self, [agent_ca, client_cert, client_key]: &[Content; 3]) -> Result<Dialing, InvalidTls> {
        let of = |flag, path: &PathBuf| {
            let path = path.clone();
            move |problem: String| InvalidTls { flag, path: path.clone(), problem }
        };
        let of_ca = of("--agent-ca", &self.agent_ca);
        let of_cert = of("--client-cert", &self.client_cert);
        let of_key = of("--client-key", &self.client_key);

        let mut roots = RootCertStore::empty();
        for authority in certificates(agent_ca).map_err(&of_ca)? {
            roots.add(authority).map_err(|error| of_ca(format!("has no valid authority: {error}")))?;
        }
        let chain = certificates(client_cert).map_err(&of_cert)?;
        let (_, leaf) = X509Certificate::from_der(&chain[0])
            .map_err(|error| of_cert(format!("has no valid certificate: {error}")))?;
        let not_after = u64::try_from(leaf.validity().not_after.timestamp()).unwrap_or(0);
        let key = client_key.as_ref().map_err(|problem| of_key(problem.clone()))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| of_key(format!("must have a private key in PEM that has no password: {error}")))?;
        Dialing::new(roots, chain, key, not_after).map_err(|error| {
            let cert = self.client_cert.display();
            of_key(format!("is not the key of --client-cert {cert}: give a certificate and its own key ({error})"))
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

/// Parses the certificates; an empty list is an error.
fn certificates(pem: &Content) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = pem.as_ref().map_err(Clone::clone)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|error| format!("is not PEM: {error}"))?;
    if certificates.is_empty() { Err("contains no certificate in PEM".to_owned()) } else { Ok(certificates) }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
