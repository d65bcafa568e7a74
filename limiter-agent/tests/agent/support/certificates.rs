//! Certificates for tests, and a client that presents one.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL takes a certificate for self-signed if its authority has the same name.
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for an IPv4 address, a DNS name or, if it contains a colon, a URI.
    pub(crate) fn issue(&self, name: &str) -> Identity {
        let mut params = CertificateParams::default();
        let text = name.try_into().expect("ASCII");
        params.subject_alt_names.push(match name.parse() {
            Ok(address) => SanType::IpAddress(IpAddr::V4(address)),
            Err(_) if name.contains(':') => SanType::URI(text),
            Err(_) => SanType::DnsName(text),
        });
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate").pem();
        Identity { certificate, key: key.serialize_pem() }
    }
}

impl Identity {
    /// Writes `tls.crt` and `tls.key`.
    pub(crate) fn write(&self, folder: &Path) {
        fs::write(folder.join("tls.crt"), &self.certificate).expect("written");
        fs::write(folder.join("tls.key"), &self.key).expect("written");
    }
}

/// One TLS connection; the agent's name is `agent.test`.
pub(crate) struct TlsClient {
    requests: SendRequest<Full<Bytes>>,
    /// The server's certificate.
    pub(crate) certificate: Vec<u8>,
}

impl TlsClient {
    /// Fails if the handshake fails, or if the server closes right after it.
    pub(crate) async fn connect(
        address: SocketAddr,
        server_ca: &Authority,
        identity: Option<&Identity>,
    ) -> std::io::Result<Self> {
        let stream = tls(address, server_ca, identity, &[]).await?;
        let shown = stream.get_ref().1.peer_certificates().expect("a server presents a certificate");
        let certificate = shown[0].to_vec();
        let (requests, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self { requests, certificate })
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Bytes>> {
        self.requests.ready().await?;
        let (head, body) = self.requests.send_request(request).await?.into_parts();
        Ok(Response::from_parts(head, body.collect().await?.to_bytes()))
    }
}

/// A connection over TLS for one of these protocols.
pub(crate) async fn tls(
    address: SocketAddr,
    server_ca: &Authority,
    identity: Option<&Identity>,
    protocols: &[&[u8]],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(server_ca.0.der().clone()).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports TLS")
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(Identity { certificate, key }) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
            config.with_client_auth_cert(chain, key).expect("the key matches the certificate")
        }
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("agent.test").expect("a name");
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}
