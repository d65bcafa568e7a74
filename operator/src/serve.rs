//! The operator's TLS servers: bounded in connections and in time, with a certificate that can change.
//!
//! A new certificate applies to new connections, and open connections keep the old one. The router decides the
//! responses.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

/// The maximum number of open connections. Further connections wait to be accepted.
const MAX_CONNECTIONS: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before the next attempt to accept, if accepting a connection failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The address of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

/// Returns a TLS configuration with this certificate, for HTTP/1.1 only: clients send one request at a time over a
/// connection.
///
/// # Errors
///
/// Certificate and key do not match.
pub(crate) fn tls(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(server))
}

/// Serves forever. `current` returns the certificate to use, if there is one. `idle` limits the time for a request's
/// head, and for a connection without a request.
pub(crate) async fn run(
    listener: TcpListener,
    router: Router,
    idle: Duration,
    current: impl Fn() -> Option<Arc<ServerConfig>>,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // If there is no certificate, the connection is closed.
        let Some(tls) = current() else { continue };
        let router = router.clone().layer(Extension(PeerAddress(peer.ip())));
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = serve(stream, tls, router, idle).await {
                tracing::debug!(%peer, %error, "a connection ended");
            }
        });
    }
}

async fn serve(stream: TcpStream, tls: Arc<ServerConfig>, router: Router, idle: Duration) -> io::Result<()> {
    let stream = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await??;
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(idle);
    http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await.map_err(io::Error::other)
}
