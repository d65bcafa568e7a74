//! The TLS client for connections to agents: its certificate, and the authorities that it trusts.

mod files;

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    version::TLS13,
};
use tokio::sync::watch;
use weir_channel::ALPN;

pub(crate) use self::files::DialingFiles;
pub use self::files::{InvalidTls, TlsFiles};

/// The TLS configuration for connections to agents.
#[derive(Debug)]
pub(crate) struct Dialing {
    pub(crate) client: Arc<ClientConfig>,
    /// The time at which the certificate presented to agents expires, in seconds of Unix time.
    pub(crate) not_after: u64,
}

impl Dialing {
    /// Returns a configuration for TLS 1.3 and the channel. The client presents this certificate, and accepts agents
    /// whose certificate these authorities signed.
    ///
    /// # Errors
    ///
    /// Certificate and key do not match.
    pub(crate) fn new(
        authorities: RootCertStore,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        not_after: u64,
    ) -> Result<Self, rustls::Error> {
        let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(authorities)
            .with_client_auth_cert(chain, key)?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        // A resumed session would skip the check of the agent's certificate.
        client.resumption = Resumption::disabled();
        Ok(Self { client: Arc::new(client), not_after })
    }
}

/// Sends new values to all receivers. The value is `None` before the first one.
pub(crate) type Sender<T> = watch::Sender<Option<Arc<T>>>;

/// Receives the TLS configuration for connections to agents. The value is `None` until there is a certificate.
pub(crate) type Held = watch::Receiver<Option<Arc<Dialing>>>;
