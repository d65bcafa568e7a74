//! The agent's own servers, for the control and the telemetry port: bounded, so that nobody who reaches them can take
//! more than a part of the pod's memory.

use std::{convert::Infallible, io, net::TcpListener, sync::Arc, time::Duration};

use axum::Router;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
};
use tower_service::Service;
use weir_tower::MonotonicClock;

use crate::{
    control::{self, Tls},
    sampled::Sample,
};

/// How many connections a port serves side by side; others wait to be accepted.
const MAX_CONNECTIONS: usize = 256;

/// How long a client may take to send a request's head, and how long it may keep a connection idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to leave the accept queue alone when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One of the agent's own ports.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) router: Router,
    /// None: plain HTTP.
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) clock: MonotonicClock,
}

impl Server {
    /// Serves for ever.
    ///
    /// # Errors
    ///
    /// If the listener cannot be used at all.
    pub(crate) async fn run(self) -> io::Result<Infallible> {
        let Self { listener, router, tls, clock } = self;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let complaints = Arc::new(Sample::default());
        loop {
            let place = Arc::clone(&places).acquire_owned().await.expect("never closed");
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Only Nagle's delay is lost if this fails.
            let _ = stream.set_nodelay(true);
            let (router, tls, complaints) = (router.clone(), tls.clone(), Arc::clone(&complaints));
            tokio::spawn(async move {
                let _place = place;
                let Some(tls) = tls else { return http(stream, router).await };
                match tls.accept(stream).await {
                    Ok(accepted) => {
                        let router = accepted.stranger.map_or(router, control::closed);
                        http(accepted.stream, router).await;
                    }
                    Err(error) => {
                        if let Some(unlogged) = complaints.take(clock.now()) {
                            tracing::warn!(%peer, %error, unlogged, "a TLS handshake on the control port failed");
                        }
                    }
                }
            });
        }
    }
}

/// Serves one connection until it ends.
async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| router.clone().call(request));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}
