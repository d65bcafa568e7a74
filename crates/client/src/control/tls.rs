//! Mutual TLS of the control port: the agent's certificate, and which clients it accepts.
//!
//! Credentials are in files that other programs write, or come from the operator ([`crate::identity`]). They change
//! while the agent runs. New credentials replace those in use only if they work as a whole, and only for later
//! connections: open connections are unaffected. This module must never accept a client without a certificate of the
//! client CA. As long as there are no credentials, it refuses every client.

use std::{
    convert::Infallible,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use tokio::{net::TcpStream, sync::Notify, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use weir_channel::ALPN;
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

use crate::watch::{Contents, Watched};

/// The outcomes of a handshake, as in `weir_control_handshakes_total`.
pub(crate) const HANDSHAKES: [&str; 4] = ["accepted", "unnamed", "failed", "timeout"];

/// The outcomes of a change of credentials, as in `weir_control_certificate_reloads_total`.
pub(crate) const RELOADS: [&str; 2] = ["loaded", "rejected"];

/// A client that does not finish its handshake in this time is disconnected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for which a client waits if it connects before the agent has a certificate. The connection makes the agent
/// request a certificate. The operator's first dial can end earlier, but its second one waits for longer than this
/// time.
const FIRST_CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(1);

/// The files with the certificates and the key, all in PEM.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: PathBuf,
}

/// The fault of a TLS file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {}: {problem}", path.display())]
pub struct InvalidTls {
    /// The option that names the file.
    pub flag: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and how to fix it.
    pub problem: String,
}

/// The current TLS state of the control port.
#[derive(Debug)]
pub(crate) struct Tls {
    /// `None` if the operator issues the credentials.
    files: Option<TlsFiles>,
    client_name: Option<String>,
    /// `None` while every client is refused.
    current: ArcSwapOption<Credentials>,
    /// Notified when credentials have changed.
    installed: Notify,
    /// Notified when a client could not connect with the current credentials.
    called: Notify,
    handshakes: [AtomicU64; HANDSHAKES.len()],
    reloads: [AtomicU64; RELOADS.len()],
}

/// The certificate that the agent presents, and the clients that it accepts.
#[derive(Debug)]
pub(crate) struct Credentials {
    server: Arc<ServerConfig>,
    /// The expiry of the agent's certificate, in seconds of Unix time.
    pub(crate) not_after: u64,
}

/// The invalid part of the credentials, and the reason.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidCredentials {
    #[error("{0}")]
    Certificate(String),
    #[error("the key does not match the certificate: {0}")]
    Key(rustls::Error),
    #[error("{0}")]
    Authorities(String),
}

/// A successful handshake.
pub(crate) struct Accepted {
    pub(crate) stream: TlsStream<TcpStream>,
    /// The reason to refuse this client. `None` if every client name is accepted, or if this client has the right name.
    pub(crate) refusal_reason: Option<String>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn read(files: TlsFiles, client_name: Option<String>) -> Result<Self, InvalidTls> {
        let (_, contents) = files.watched();
        let credentials = files.credentials(contents)?;
        Ok(Self::new(Some(files), client_name, Some(credentials)))
    }

    /// Refuses every client until there are credentials, and then accepts only clients of this name.
    pub(crate) fn closed(client_name: String) -> Self {
        Self::new(None, Some(client_name), None)
    }

    fn new(files: Option<TlsFiles>, client_name: Option<String>, credentials: Option<Credentials>) -> Self {
        let current = ArcSwapOption::from_pointee(credentials);
        let (installed, called) = (Notify::new(), Notify::new());
        let (handshakes, reloads) = (Default::default(), Default::default());
        Self { files, client_name, current, installed, called, handshakes, reloads }
    }

    /// Reads the files again whenever they change. Never ends.
    pub(crate) async fn follow(&self) -> Infallible {
        let Some(files) = &self.files else { return std::future::pending().await };
        let (mut watched, mut contents) = files.watched();
        loop {
            // The files may have changed since the agent read them at its start.
            match files.credentials(contents) {
                Ok(credentials) => self.install(credentials),
                Err(error) => {
                    tracing::error!(%error, "control certificates rejected: the previous ones stay in use");
                    self.rejected();
                }
            }
            contents = watched.changed().await;
        }
    }

    /// Installs credentials for later connections.
    pub(crate) fn install(&self, credentials: Credentials) {
        let expires = credentials.not_after;
        self.current.store(Some(Arc::new(credentials)));
        self.installed.notify_waiters();
        tracing::info!(expires, "control certificates loaded");
        self.reloads[0].fetch_add(1, Relaxed);
    }

    /// Counts a failed replacement of credentials.
    pub(crate) fn rejected(&self) {
        self.reloads[1].fetch_add(1, Relaxed);
    }

    /// Returns when a client could not connect, because there are no credentials or the client does not trust them.
    pub(crate) async fn called(&self) {
        self.called.notified().await;
    }

    /// The credentials, if they exist or arrive within [`FIRST_CERTIFICATE_TIMEOUT`].
    async fn credentials(&self) -> Option<Arc<Credentials>> {
        // The future is created before the check, so that credentials installed after the check are not missed.
        let installed = self.installed.notified();
        if let Some(credentials) = self.current.load_full() {
            return Some(credentials);
        }
        self.called.notify_one();
        let _ = timeout(FIRST_CERTIFICATE_TIMEOUT, installed).await;
        self.current.load_full()
    }

    /// Accepts a client.
    ///
    /// # Errors
    ///
    /// Returns the failure, for the log. If the handshake failed, the client has received a TLS alert.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<Accepted> {
        let Some(credentials) = self.credentials().await else {
            self.handshakes[2].fetch_add(1, Relaxed);
            return Err(io::Error::other("this agent has no certificate yet"));
        };
        let acceptor = TlsAcceptor::from(Arc::clone(&credentials.server));
        let (outcome, accepted) = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let refusal_reason = self.refusal_reason(&stream);
                (usize::from(refusal_reason.is_some()), Ok(Accepted { stream, refusal_reason }))
            }
            Ok(Err(error)) => {
                // The client may no longer trust this certificate.
                self.called.notify_one();
                (2, Err(error))
            }
            Err(elapsed) => (3, Err(elapsed.into())),
        };
        self.handshakes[outcome].fetch_add(1, Relaxed);
        accepted
    }

    /// The reason to refuse a client whose certificate is of the right CA but does not have the right name.
    fn refusal_reason(&self, stream: &TlsStream<TcpStream>) -> Option<String> {
        let wanted = self.client_name.as_deref()?;
        let (_, connection) = stream.get_ref();
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let names = certificate.map_or_else(Vec::new, |certificate| names(certificate));
        (!names.iter().any(|name| name == wanted)).then(|| {
            let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            format!("this control port is for {wanted}, and the client's certificate has {names}")
        })
    }

    /// The number of handshakes with each outcome in [`HANDSHAKES`].
    pub(crate) fn handshakes(&self) -> [u64; HANDSHAKES.len()] {
        self.handshakes.each_ref().map(|count| count.load(Relaxed))
    }

    /// The number of changes of credentials with each outcome in [`RELOADS`].
    pub(crate) fn reloads(&self) -> [u64; RELOADS.len()] {
        self.reloads.each_ref().map(|count| count.load(Relaxed))
    }

    /// The expiry of the agent's certificate, in seconds of Unix time. `None` before there is one.
    pub(crate) fn not_after(&self) -> Option<u64> {
        self.current.load().as_ref().map(|credentials| credentials.not_after)
    }
}

impl TlsFiles {
    fn watched(&self) -> (Watched<3>, Contents<3>) {
        Watched::read([self.cert.clone(), self.key.clone(), self.client_ca.clone()])
    }

    fn credentials(&self, contents: Contents<3>) -> Result<Credentials, InvalidTls> {
        let of_cert = |problem| InvalidTls { flag: "--control-cert", path: self.cert.clone(), problem };
        let of_key = |problem| InvalidTls { flag: "--control-key", path: self.key.clone(), problem };
        let of_ca = |problem| InvalidTls { flag: "--control-client-ca", path: self.client_ca.clone(), problem };
        let [cert, key, client_ca] = contents;

        let chain = certificates(&cert.map_err(of_cert)?).map_err(of_cert)?;
        let key = PrivateKeyDer::from_pem_slice(&key.map_err(of_key)?)
            .map_err(|error| of_key(format!("no private key in PEM: {error}")))?;
        let authorities = certificates(&client_ca.map_err(of_ca)?).map_err(of_ca)?;
        Credentials::new(chain, key, authorities).map_err(|error| match error {
            InvalidCredentials::Certificate(problem) => of_cert(problem),
            InvalidCredentials::Authorities(problem) => of_ca(problem),
            InvalidCredentials::Key(error) => {
                of_key(format!("does not match --control-cert {}: {error}", self.cert.display()))
            }
        })
    }
}

impl Credentials {
    /// Credentials of a server with this chain of at least one certificate, for clients of these authorities.
    pub(crate) fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Self, InvalidCredentials> {
        let not_after = not_after(&chain[0]).map_err(InvalidCredentials::Certificate)?;
        let of_authorities = |problem: String| InvalidCredentials::Authorities(problem);
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| of_authorities(error.to_string()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| of_authorities(error.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("ring supports TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(InvalidCredentials::Key)?;
        server.alpn_protocols = vec![ALPN.to_vec(), b"http/1.1".to_vec()];
        // A resumed session would skip the check of the client's certificate.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { server: Arc::new(server), not_after })
    }
}

/// Parses certificates, at least one.
///
/// # Errors
///
/// The text is not PEM, or has no certificate.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| format!("not PEM: {error}"))?;
    if certificates.is_empty() { Err("no certificate in PEM".to_owned()) } else { Ok(certificates) }
}

fn not_after(certificate: &CertificateDer<'_>) -> Result<u64, String> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| format!("not a certificate: {error}"))?;
    Ok(u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0))
}

/// The DNS names and URIs in a certificate.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else { return Vec::new() };
    let named = alternatives.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
        _ => None,
    });
    named.collect()
}
