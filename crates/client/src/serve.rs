//! The servers for the control port and the telemetry port. Their connections are bounded, so that no client can use
//! more than a part of the pod's memory.

mod requests;

use std::{convert::Infallible, io, net::TcpListener, sync::Arc, time::Duration};

use axum::{Router, http::Method};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use weir_channel::{ALPN, FIRST_BYTE};
use weir_enforce::Sample;
use weir_tower::MonotonicClock;

pub use self::requests::{Answering, Requests};
use crate::{
    control::{self, Accepted, Control, Tls, channel},
    slots::{ConnectionSlots, Rank},
};

/// The maximum number of connections, in total and from one address.
const MOST: usize = 256;
const MOST_OF_ONE: usize = MOST / 2;

/// The time limit for a client's first byte, and for a TLS handshake.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for a request's head, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum size of a request's head. Without it, hyper keeps 400 KB of an incomplete head.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// The first byte that a TLS client sends: the type of a handshake record.
const TLS_HANDSHAKE: u8 = 22;

/// The pause between attempts to accept while the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The server of one of the agent's own ports.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) listener: TcpListener,
    pub(crate) router: Router,
    /// `None`: no TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// The routes for plain-text clients in the pod on a TLS port. `None` refuses them.
    pub(crate) local: Option<Router>,
    /// The state for clients that ask for the operator's channel. `None` if this port has no channel.
    pub(crate) channel: Option<Arc<Control>>,
    pub(crate) clock: MonotonicClock,
}

impl Server {
    /// Serves forever.
    ///
    /// # Errors
    ///
    /// Returns an error if the listener cannot be used.
    pub(crate) async fn run(self) -> io::Result<Infallible> {
        let Self { listener, router, tls, local, channel, clock } = self;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let slots = ConnectionSlots::new(MOST, MOST_OF_ONE);
        let complaints = Arc::new(Sample::default());
        // Dropping this set closes the connections.
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // Most such errors tell that the process has no free file descriptor.
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        slots.make_room(Rank::Idle);
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // If this call fails, Nagle's delay remains and vanished clients are not detected.
            let _ = stream.set_nodelay(true).and_then(|()| notice_silence(&stream));
            let (router, tls, complaints) = (router.clone(), tls.clone(), Arc::clone(&complaints));
            let channel = channel.clone();
            // An IPv4 address can arrive as an IPv4-mapped IPv6 address.
            let ip = peer.ip().to_canonical();
            // The proxy of a mesh connects from a loopback address to the pod's address, for clients in other pods.
            let is_in_pod =
                || ip.is_loopback() && stream.local_addr().is_ok_and(|own| own.ip().to_canonical().is_loopback());
            let local = local.clone().filter(|_| is_in_pod());
            // `try_take` always succeeds, because every connection of these ports can be evicted.
            let Some(slot) = slots.try_take(ip, Rank::Silent, clock.now()) else { continue };
            let requests = Requests::new(slot, clock);
            let connection = Arc::clone(&requests);
            let serve = async move {
                let Some(first) = first_byte(&stream).await else { return };
                let Some(tls) = tls else {
                    return match channel.filter(|_| first == FIRST_BYTE) {
                        Some(channel) => converse(stream, channel, None, Some(requests)).await,
                        None => http(stream, router, Some(requests)).await,
                    };
                };
                if let Some(local) = local
                    && first != TLS_HANDSHAKE
                {
                    return http(stream, local, Some(requests)).await;
                }
                match timeout(FIRST_BYTE_TIMEOUT, tls.accept(stream)).await {
                    Ok(Ok(Accepted { stream, refusal_reason })) => {
                        // Requests of a refused client do not protect its connection from eviction.
                        let asks = refusal_reason.is_none().then_some(requests);
                        let protocol = stream.get_ref().1.alpn_protocol();
                        if let Some(channel) = channel.filter(|_| protocol == Some(ALPN)) {
                            // The stream is boxed once, because nested futures would store it several times.
                            return converse(Box::new(stream), channel, refusal_reason, asks).await;
                        }
                        http(stream, refusal_reason.map_or(router, control::closed), asks).await;
                    }
                    Ok(Err(error)) => {
                        if let Some(unlogged) = complaints.take(clock.now()) {
                            tracing::warn!(%peer, %error, unlogged, "a TLS handshake on the control port failed");
                        }
                    }
                    Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
                }
            };
            connections.spawn(async move {
                tokio::select! {
                    () = serve => {}
                    () = connection.evicted() => tracing::debug!(%peer, "the connection was evicted for a new one"),
                }
            });
        }
    }
}

/// Serves a router over plain HTTP, with the bounds of the control port, forever.
///
/// # Errors
///
/// Returns an error if the listener cannot be used.
pub async fn serve_plain(listener: TcpListener, router: Router, clock: MonotonicClock) -> io::Result<Infallible> {
    Server { listener, router, tls: None, local: None, channel: None, clock }.run().await
}

/// Serves one connection until it ends, and records each request in `requests` if there is such a record.
async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    requests: Option<Arc<Requests>>,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::POST);
        let answering = requests.as_ref().map(|requests| requests.begin(!reads));
        let answer = tower_service::Service::call(&mut router.clone(), request);
        async move {
            let answer = answer.await;
            drop(answering);
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// Serves an operator over the channel, or refuses a client with another name.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    control: Arc<Control>,
    refusal_reason: Option<String>,
    requests: Option<Arc<Requests>>,
) {
    let ended = match (refusal_reason, requests) {
        (None, Some(requests)) => {
            // An open channel counts as a request, so that connections without a request are evicted first.
            let _open = requests.begin(false);
            channel::serve(stream, control, || requests.begin(true)).await
        }
        (refusal_reason, _) => channel::refuse(stream, refusal_reason.unwrap_or_default()).await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "the channel ended");
    }
}

/// Makes the kernel close the connection of a client that vanished or does not read, even if nothing is sent to it.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(HEAD_TIMEOUT))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(HEAD_TIMEOUT).with_interval(HEAD_TIMEOUT / 3))
}

/// The first byte from a client. `None` if the client is silent for too long.
async fn first_byte(stream: &TcpStream) -> Option<u8> {
    let mut first = [0];
    let said = timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut first)).await;
    matches!(said, Ok(Ok(1))).then(|| first[0])
}
