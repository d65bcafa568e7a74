//! Who the agents are: each shows the certificate of its own pod, signed by the operator's own authority, and lets in nobody
//! but the operator.
//!
//! As real agents do it, but for how they got it: asking the operator, and the operator the apiserver, ten thousand times
//! before each run would tell how fast the apiserver reviews tokens.

use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use rcgen::{CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};

/// The certificates of all agents.
pub(super) struct Identities {
    issuer: Issuer<'static, KeyPair>,
    /// One for all: whose it is says the certificate, and making ten thousand takes its time.
    key: KeyPair,
    /// Everything but the certificate.
    server: ServerConfig,
    signing: Arc<dyn rustls::sign::SigningKey>,
    servers: Box<[OnceLock<Arc<ServerConfig>>]>,
}

impl Identities {
    /// For so many agents. The authority's certificate and key are PEM.
    pub(super) fn new(agents: usize, certificate: &str, key: &str) -> anyhow::Result<Self> {
        let issuer = Issuer::from_ca_cert_pem(certificate, KeyPair::from_pem(key)?)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).context("the authority is no PEM")?)?;
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
        let key = KeyPair::generate()?;
        let signing = ring::sign::any_supported_type(&PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
        let nobody = CertifiedKey::new(Vec::new(), signing.clone());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(nobody)));
        server.alpn_protocols = vec![b"h2".to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { issuer, key, server, signing, servers: (0..agents).map(|_| OnceLock::new()).collect() })
    }

    /// The agent of this number belongs to the pod of this namespace and UID.
    pub(super) fn certify(&self, number: usize, namespace: &str, uid: &str) -> anyhow::Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::DnsName(format!("{uid}.{namespace}.pod.weir.dev").try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&self.key, &self.issuer)?;
        let chain = vec![certificate.der().clone()];
        let shown = SingleCertAndKey::from(CertifiedKey::new(chain, self.signing.clone()));
        let mut server = self.server.clone();
        server.cert_resolver = Arc::new(shown);
        // It has one already only if the same pod was made twice.
        let _ = self.servers[number].set(Arc::new(server));
        Ok(())
    }

    /// What the agent of this number is, over TLS; none before its pod is there.
    pub(super) fn server(&self, number: usize) -> Option<Arc<ServerConfig>> {
        self.servers.get(number)?.get().cloned()
    }
}
