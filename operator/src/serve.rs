//! The operator's HTTP servers: bounded in connections and in time. Their bodies are bounded in size, too.
//!
//! Anyone in the cluster can reach these servers, so a client that sends slowly or opens many connections must not keep
//! the apiserver, the agents or the kubelet out. The router decides the responses.

mod connections;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{Extension, Router, body::Body};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Collected, Limited};
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
use socket2::{Domain, Socket, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

pub(crate) use self::connections::Connection;
use self::connections::Connections;

/// The maximum number of open connections of one server.
const MAX_CONNECTIONS: usize = 256;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// The time within which the body of a request must arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause before the next attempt to accept, if accepting a connection failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The number of connections that can wait for `accept`.
const BACKLOG: i32 = 1024;

/// A body that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnreadableBody {
    #[error("the body did not arrive within {} s", BODY_TIMEOUT.as_secs())]
    Slow,
    /// The body is too long, or the client disconnected.
    #[error("the body cannot be read: {0}")]
    Broken(axum::BoxError),
}

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

/// Listens on an address. `[::]` accepts IPv4 and IPv6, and becomes `0.0.0.0` on a system without IPv6, because pods
/// have addresses of either kind or of both.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let is_for_all = address.is_ipv6() && address.ip().is_unspecified();
    let known = |error: &io::Error| matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied);
    match listen_on(address, is_for_all) {
        // The error of the requested address is more useful than the error of the fallback.
        Err(error) if is_for_all && !known(&error) => {
            listen_on((Ipv4Addr::UNSPECIFIED, address.port()).into(), false).map_err(|_| error)
        }
        listening => listening,
    }
}

fn listen_on(address: SocketAddr, is_for_all: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if is_for_all {
        socket.set_only_v6(false)?;
    }
    // Without this option, a restart would have to wait until old connections leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves forever, without TLS. `idle` limits the time for a request's head, and for a connection without a request.
pub(crate) async fn run(listener: TcpListener, router: Router, idle: Duration) {
    accept(listener, |stream, connection| {
        let router = router.clone();
        spawn(connection, move |connection| serve(stream, router, connection, idle));
    })
    .await;
}

/// Serves forever, over TLS. `current` returns the certificate for new connections; open connections keep the old one.
/// While there is none, the server closes new connections.
pub(crate) async fn run_tls(
    listener: TcpListener,
    router: Router,
    idle: Duration,
    current: impl Fn() -> Option<Arc<ServerConfig>>,
) {
    accept(listener, |stream, connection| {
        let Some(tls) = current() else { return };
        let router = router.clone();
        spawn(connection, move |connection| async move {
            let stream = timeout(HANDSHAKE_TIMEOUT, TlsAcceptor::from(tls).accept(stream)).await??;
            serve(stream, router, connection, idle).await
        });
    })
    .await;
}

/// Reads the body of a request.
///
/// # Errors
///
/// The body is larger than `most` bytes, or it takes too long.
pub(crate) async fn read_body(body: Body, most: usize) -> Result<Bytes, UnreadableBody> {
    match timeout(BODY_TIMEOUT, Limited::new(body, most).collect()).await {
        Ok(read) => read.map(Collected::to_bytes).map_err(UnreadableBody::Broken),
        Err(_) => Err(UnreadableBody::Slow),
    }
}

async fn accept(listener: TcpListener, mut start: impl FnMut(TcpStream, Connection)) {
    let connections = Connections::new(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => start(stream, connections.open(peer.ip().to_canonical())),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn spawn<F: Future<Output = io::Result<()>> + Send>(
    connection: Connection,
    serve: impl FnOnce(Arc<Connection>) -> F + Send + 'static,
) {
    tokio::spawn(async move {
        let connection = Arc::new(connection);
        let peer = connection.peer();
        tokio::select! {
            () = connection.evicted() => tracing::debug!(%peer, "too many connections: closed one"),
            served = serve(Arc::clone(&connection)) => if let Err(error) = served {
                tracing::debug!(%peer, %error, "a connection ended");
            },
        }
    });
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    connection: Arc<Connection>,
    idle: Duration,
) -> io::Result<()> {
    let router = router.layer(Extension(connection));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(idle);
    http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await.map_err(io::Error::other)
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
