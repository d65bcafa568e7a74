//! Mutual TLS of the control port: the agent's certificate, and whose clients are let in.
//!
//! They are in files that others write, or come from the operator ([`crate::identity`]), and change while the agent runs.
//! What is in use changes only to something that works as a whole, and only for connections that come later: those that
//! are open stay as they are. Nothing here may let in a client without a certificate of the client CA; as long as there
//! are no credentials, nobody is let in.

use std::{
    convert::Infallible,
    fmt, io,
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

/// What can become of a handshake, as in `weir_control_handshakes_total`.
pub(crate) const HANDSHAKES: [&str; 4] = ["accepted", "unnamed", "failed", "timeout"];

/// What can become of credentials that are due to change, as in `weir_control_certificate_reloads_total`.
pub(crate) const RELOADS: [&str; 2] = ["loaded", "rejected"];

/// A client that cannot finish a handshake in this time makes room for others.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client is held that comes before there is a certificate: its call ends the wait for one. Shorter than an operator waits.
const FIRST_CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(1);

/// Which files say who is who; PEM all of them.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: PathBuf,
}

/// Files that make no TLS server.
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

/// The control port's TLS as it is now.
#[derive(Debug)]
pub(crate) struct Tls {
    /// None: the operator gives what there is.
    files: Option<TlsFiles>,
    client_name: Option<String>,
    /// None: nobody is let in yet.
    current: ArcSwapOption<Credentials>,
    /// Credentials have changed.
    installed: Notify,
    /// A client came that could not be let in with what there is.
    called: Notify,
    handshakes: [AtomicU64; HANDSHAKES.len()],
    reloads: [AtomicU64; RELOADS.len()],
}

/// What the agent shows, and whom it lets in.
#[derive(Debug)]
pub(crate) struct Credentials {
    server: Arc<ServerConfig>,
    /// Until when the agent's certificate is valid, in seconds of Unix time.
    pub(crate) not_after: u64,
}

/// Which part of credentials is no good, and why.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidCredentials {
    #[error("{0}")]
    Certificate(String),
    #[error("the key does not go with the certificate: {0}")]
    Key(rustls::Error),
    #[error("{0}")]
    Authorities(String),
}

/// A handshake that ended well.
pub(crate) struct Accepted {
    pub(crate) stream: TlsStream<TcpStream>,
    /// None: nobody in particular was asked for, or it was this client. Otherwise what to tell it.
    pub(crate) stranger: Option<String>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn read(files: TlsFiles, client_name: Option<String>) -> Result<Self, InvalidTls> {
        let (_, contents) = files.watched();
        let credentials = files.credentials(contents)?;
        Ok(Self::new(Some(files), client_name, Some(credentials)))
    }

    /// Lets nobody in until there are credentials, and then only clients of this name.
    pub(crate) fn closed(client_name: String) -> Self {
        Self::new(None, Some(client_name), None)
    }

    fn new(files: Option<TlsFiles>, client_name: Option<String>, credentials: Option<Credentials>) -> Self {
        let current = ArcSwapOption::from_pointee(credentials);
        let (installed, called) = (Notify::new(), Notify::new());
        let (handshakes, reloads) = (Default::default(), Default::default());
        Self { files, client_name, current, installed, called, handshakes, reloads }
    }

    /// Reads the files again whenever they change, for ever.
    pub(crate) async fn follow(&self) -> Infallible {
        let Some(files) = &self.files else { return std::future::pending().await };
        let (mut watched, mut contents) = files.watched();
        loop {
            // The first may have changed since the start.
            match files.credentials(contents) {
                Ok(credentials) => self.install(credentials),
                Err(error) => {
                    tracing::error!(%error, "control certificates rejected: those from before stay in use");
                    self.rejected();
                }
            }
            contents = watched.changed().await;
        }
    }

    /// For connections that come from now on.
    pub(crate) fn install(&self, credentials: Credentials) {
        let expires = credentials.not_after;
        self.current.store(Some(Arc::new(credentials)));
        self.installed.notify_waiters();
        tracing::info!(expires, "control certificates loaded");
        self.reloads[0].fetch_add(1, Relaxed);
    }

    /// There should have been others by now.
    pub(crate) fn rejected(&self) {
        self.reloads[1].fetch_add(1, Relaxed);
    }

    /// Returns once a client has come that could not be let in for want of credentials that it believes.
    pub(crate) async fn called(&self) {
        self.called.notified().await;
    }

    /// What there is, or comes within a moment.
    async fn credentials(&self) -> Option<Arc<Credentials>> {
        // Before the look: what is installed after it is not missed.
        let installed = self.installed.notified();
        if let Some(credentials) = self.current.load_full() {
            return Some(credentials);
        }
        self.called.notify_one();
        let _ = timeout(FIRST_CERTIFICATE_TIMEOUT, installed).await;
        self.current.load_full()
    }

    /// Lets a client in.
    ///
    /// # Errors
    ///
    /// What went wrong, for the log: TLS has told the client in its own words.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<Accepted> {
        let Some(credentials) = self.credentials().await else {
            self.handshakes[2].fetch_add(1, Relaxed);
            return Err(io::Error::other("this agent has no certificate yet"));
        };
        let acceptor = TlsAcceptor::from(Arc::clone(&credentials.server));
        let (outcome, accepted) = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let stranger = self.stranger(&stream);
                (usize::from(stranger.is_some()), Ok(Accepted { stream, stranger }))
            }
            Ok(Err(error)) => {
                // It may not believe this certificate any more.
                self.called.notify_one();
                (2, Err(error))
            }
            Err(elapsed) => (3, Err(elapsed.into())),
        };
        self.handshakes[outcome].fetch_add(1, Relaxed);
        accepted
    }

    /// What to tell a client of the right CA that is not the one that may come in.
    fn stranger(&self, stream: &TlsStream<TcpStream>) -> Option<String> {
        let wanted = self.client_name.as_deref()?;
        let (_, connection) = stream.get_ref();
        let certificate = connection.peer_certificates().and_then(<[_]>::first);
        let names = certificate.map_or_else(Vec::new, |certificate| names(certificate));
        (!names.iter().any(|name| name == wanted)).then(|| {
            let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            format!("this control port is for {wanted}, and the client's certificate has {names}")
        })
    }

    /// How many handshakes had each of the outcomes in [`HANDSHAKES`].
    pub(crate) fn handshakes(&self) -> [u64; HANDSHAKES.len()] {
        self.handshakes.each_ref().map(|count| count.load(Relaxed))
    }

    /// How many changes of the files had each of the outcomes in [`RELOADS`].
    pub(crate) fn reloads(&self) -> [u64; RELOADS.len()] {
        self.reloads.each_ref().map(|count| count.load(Relaxed))
    }

    /// Until when the agent's certificate is valid, in seconds of Unix time; none before there is one.
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
                of_key(format!("does not go with --control-cert {}: {error}", self.cert.display()))
            }
        })
    }
}

impl Credentials {
    /// A server with this chain, which has one certificate at least, for clients of these authorities.
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
            .expect("ring has suites of TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(InvalidCredentials::Key)?;
        server.alpn_protocols = vec![ALPN.to_vec(), b"h2".to_vec(), b"http/1.1".to_vec()];
        // A session that is resumed would skip a look at the client's certificate.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { server: Arc::new(server), not_after })
    }
}

/// At least one.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| format!("not PEM: {error}"))?;
    if certificates.is_empty() { Err("no certificate in PEM".to_owned()) } else { Ok(certificates) }
}

fn not_after(certificate: &CertificateDer<'_>) -> Result<u64, String> {
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| format!("not a certificate: {error}"))?;
    Ok(u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0))
}

/// The DNS names and URIs that a certificate is for.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else { return Vec::new() };
    let named = alternatives.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
        _ => None,
    });
    named.collect()
}
