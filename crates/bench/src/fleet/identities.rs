//! The identities of the agents. Each agent presents the certificate of its own pod, which the operator's authority has
//! signed, and accepts only the operator.
//!
//! Unlike those of real agents, the certificates are issued directly. Otherwise, ten thousand requests before each run
//! would measure how fast the apiserver reviews tokens.

use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use rcgen::{CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

/// The certificates of all agents.
pub(crate) struct Identities {
    issuer: Issuer<'static, KeyPair>,
    /// The key of all agents. The certificate identifies the agent, and generating ten thousand keys takes long.
    key: KeyPair,
    /// The TLS configuration, without the certificate.
    server: ServerConfig,
    signing: Arc<dyn rustls::sign::SigningKey>,
    servers: Box<[OnceLock<Arc<ServerConfig>>]>,
}

impl Identities {
    /// Creates the identities of this number of agents. The certificate and the key of the authority are PEM.
    pub(crate) fn new(agents: usize, certificate: &str, key: &str) -> anyhow::Result<Self> {
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).context("the authority is not PEM")?)?;
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
        let key = KeyPair::generate()?;
        let signing = ring::sign::any_supported_type(&PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
        let nobody = CertifiedKey::new(Vec::new(), signing.clone());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(nobody)));
        server.alpn_protocols = vec![weir_channel::ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { issuer, key, server, signing, servers: (0..agents).map(|_| OnceLock::new()).collect() })
    }

    /// Assigns the pod with this namespace and UID to the agent with this number.
    pub(crate) fn certify(&self, number: usize, namespace: &str, uid: &str) -> anyhow::Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::DnsName(format!("{uid}.{namespace}.pod.weir.dev").try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&self.key, &self.issuer)?;
        let chain = vec![certificate.der().clone()];
        let shown = SingleCertAndKey::from(CertifiedKey::new(chain, self.signing.clone()));
        let mut server = self.server.clone();
        server.cert_resolver = Arc::new(shown);
        // The agent already has a certificate only if the same pod was created twice.
        let _ = self.servers[number].set(Arc::new(server));
        Ok(())
    }

    /// The TLS configuration of the agent with this number. None before its pod exists.
    pub(crate) fn server(&self, number: usize) -> Option<Arc<ServerConfig>> {
        self.servers.get(number)?.get().cloned()
    }
}
