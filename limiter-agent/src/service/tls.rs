//! TLS of the rate limit service's port. The files can change while the agent runs.
//!
//! With a client CA, only clients with a certificate of this authority are served. Without it, every client is.

use std::{convert::Infallible, io, path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use weir_client::{
    InvalidTls,
    agent::{Contents, Watched, certificates},
};

/// A client that does not finish its handshake in this time is disconnected.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The files of the certificate, its key and the client CA, in PEM.
#[derive(Clone, Debug)]
pub(crate) struct ServiceTlsFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// `None` if clients need no certificate.
    pub(crate) client_ca: Option<PathBuf>,
}

/// The current TLS configuration.
#[derive(Debug)]
pub(crate) struct ServiceTls {
    files: ServiceTlsFiles,
    current: ArcSwap<ServerConfig>,
}

impl ServiceTls {
    /// Reads the files.
    pub(crate) fn read(files: ServiceTlsFiles) -> Result<Self, InvalidTls> {
        let (_, contents) = files.watched();
        let current = ArcSwap::new(files.server(contents)?);
        Ok(Self { files, current })
    }

    /// Reads the files again whenever they change. Never ends.
    pub(crate) async fn follow(&self) -> Infallible {
        let (mut watched, mut contents) = self.files.watched();
        loop {
            // The files may have changed since the agent read them at its start.
            match self.files.server(contents) {
                Ok(server) => self.current.store(server),
                Err(error) => tracing::error!(%error, "certificates rejected: the previous ones stay in use"),
            }
            contents = watched.changed().await;
        }
    }

    /// Accepts a client.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(self.current.load_full()).accept(stream)).await?
    }
}

impl ServiceTlsFiles {
    /// Without a client CA, the certificate is read twice instead.
    fn watched(&self) -> (Watched<3>, Contents<3>) {
        let client_ca = self.client_ca.as_ref().unwrap_or(&self.cert);
        Watched::read([self.cert.clone(), self.key.clone(), client_ca.clone()])
    }

    fn server(&self, contents: Contents<3>) -> Result<Arc<ServerConfig>, InvalidTls> {
        let of_cert = |problem| InvalidTls { flag: "--tls-cert", path: self.cert.clone(), problem };
        let of_key = |problem| InvalidTls { flag: "--tls-key", path: self.key.clone(), problem };
        let [cert, key, client_ca] = contents;
        let chain = certificates(&cert.map_err(of_cert)?).map_err(of_cert)?;
        let key = PrivateKeyDer::from_pem_slice(&key.map_err(of_key)?)
            .map_err(|error| of_key(format!("no private key in PEM: {error}")))?;
        let provider = Arc::new(ring::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("ring supports TLS 1.3 and 1.2");
        let server = match &self.client_ca {
            None => server.with_no_client_auth(),
            Some(path) => {
                let of_ca = |problem| InvalidTls { flag: "--tls-client-ca", path: path.clone(), problem };
                let mut roots = RootCertStore::empty();
                for authority in certificates(&client_ca.map_err(of_ca)?).map_err(of_ca)? {
                    roots.add(authority).map_err(|error| of_ca(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                server.with_client_cert_verifier(verifier.map_err(|error| of_ca(error.to_string()))?)
            }
        };
        let server = server.with_single_cert(chain, key);
        let mut server =
            server.map_err(|error| of_key(format!("does not match --tls-cert {}: {error}", self.cert.display())))?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(server))
    }
}
