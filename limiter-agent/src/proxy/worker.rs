//! One worker: a thread with its own runtime and listener, and the connections that the kernel assigned to it.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    sync::Arc,
};

use axum::{Router, body::Body};
use futures::future::{Either, ready};
use http::{Extensions, HeaderValue, Method, Request};
use http_body::Body as _;
use tokio::{net::TcpStream, runtime::LocalOptions, task::spawn_local, time::MissedTickBehavior};
use tokio_util::task::TaskTracker;
use tower::{Service, service_fn};
use weir_client::agent::{ConnectionSlot, Rank, close_listener};
use weir_enforce::{AmbiguousPaths, BodyCosts, ConnectionGate, LimitLayer};

use super::{
    client,
    headers::{self, Peer},
    hyper::{App, Failure, Forwarder, IDLE_CHECK, forward, vetting},
    open_connection::OpenConnection,
    plain::ShortPath,
    settings::SERVER,
    state::Proxy,
};
use crate::open_files::Shortage;

/// Serves connections of one listener, in this thread, until the drain has ended.
///
/// # Errors
///
/// Returns an error if the runtime or the listener cannot be created.
pub(crate) fn serve_requests(listener: TcpListener, proxy: &Arc<Proxy>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let app = App::new(&proxy.upstream, proxy.settings.upstream_http2);
        let own = HeaderValue::from_str(&app.address().to_string()).expect("an address is a valid field value");
        let counts = proxy.traffic.worker();
        let short = ShortPath::new(proxy, &counts);
        let gates = proxy.rules.gates();
        let tasks = TaskTracker::new();
        let forwarder = Forwarder { app: Arc::clone(&app), proxy: Arc::clone(proxy), tunnels: tasks.clone() };
        let router = router(forwarder);
        let start = |stream, peer: SocketAddr, slot: Option<ConnectionSlot>| {
            let open = OpenConnection::new(proxy, &counts, slot, tasks.token());
            let gate = gates.of(peer.ip().to_canonical());
            // The tracker's own `spawn` would add one function call to each poll of the connection.
            spawn_local(connection(stream, peer, own.clone(), gate, router.clone(), short.clone(), open));
        };

        spawn_local(short.clone().watch());
        let mut up = proxy.upstream.up();
        let mut down = false;
        let mut idle_check = tokio::time::interval(IDLE_CHECK);
        idle_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // An accepted connection that has no slot yet. Further new connections wait in the kernel's queue.
        let mut waiting = None;
        let shortage = Shortage::default();
        loop {
            tokio::select! {
                accepted = listener.accept(), if waiting.is_none() => match accepted {
                    Ok((stream, peer)) => {
                        let now = proxy.clock.now();
                        shortage.accepted(&stream, &proxy.slots, now);
                        match proxy.slots.try_take(peer.ip(), Rank::Idle, now) {
                            Some(slot) => start(stream, peer, Some(slot)),
                            None => waiting = Some((stream, peer)),
                        }
                    }
                    Err(error) => {
                        let pause = shortage.failed(&error, &proxy.slots, proxy.clock.now());
                        tokio::time::sleep(pause).await;
                    }
                },
                slot = slot_for(proxy, waiting.as_ref()), if waiting.is_some() => {
                    if let Some((stream, peer)) = waiting.take() {
                        start(stream, peer, Some(slot));
                    }
                }
                _ = idle_check.tick() => {
                    app.close_idle();
                    gates.refresh();
                    short.close_idle();
                    proxy.slots.grow();
                    if down {
                        up = proxy.upstream.up();
                        down = up.is_cancelled();
                        if !down {
                            short.resume_keep_alive();
                        }
                    }
                }
                () = up.cancelled(), if !down => {
                    down = true;
                    short.end_keep_alive();
                }
                () = proxy.drain.cancelled() => break,
            }
        }
        short.end_keep_alive();
        if let Some((stream, peer)) = waiting {
            start(stream, peer, None);
        }
        // The agent also serves the clients in the queue, because the kernel has completed their handshakes.
        for (stream, peer) in close_listener(listener) {
            start(stream, peer, None);
        }
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            () = proxy.abort.cancelled() => {}
        }
        Ok(())
    })
}

/// Waits for a slot for a waiting connection.
async fn slot_for(proxy: &Proxy, waiting: Option<&(TcpStream, SocketAddr)>) -> ConnectionSlot {
    match waiting {
        Some((_, peer)) => proxy.slots.take(peer.ip(), Rank::Idle, proxy.clock).await,
        None => std::future::pending().await,
    }
}

/// The router for the requests that the short path does not take. Its layer is the limits of the rules in force, and
/// its service forwards to the app.
fn router(forwarder: Forwarder) -> Router {
    let limits = LimitLayer::new(forwarder.proxy.rules.gate(client_ip), SERVER);
    let forwarder = Arc::new(forwarder);
    Router::new().fallback_service(service_fn(move |request| forward(Arc::clone(&forwarder), request))).layer(limits)
}

/// The client's address, for the rules.
fn client_ip(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<Arc<Peer>>().map(|peer| peer.ip())
}

/// Validates a request before the rules decide on it, writes its host into the `Host` field, and removes the fields that
/// `Connection` names. So rules read what the app will read. `own` is the host for an HTTP/1.0 client that sends none.
///
/// # Errors
///
/// Returns the reason to refuse the request.
fn vet(request: &mut Request<Body>, ambiguous_paths: AmbiguousPaths, own: &HeaderValue) -> Result<(), Failure> {
    if request.method() == Method::CONNECT {
        return Err(Failure::ConnectMethod);
    }
    vetting::vet(request, ambiguous_paths)?;
    vetting::name_host(request, own)?;
    headers::remove_named(request.headers_mut());
    Ok(())
}

/// Serves one client until it disconnects or the drain ends the connection.
async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    own: HeaderValue,
    gate: ConnectionGate,
    router: Router,
    short: ShortPath,
    open: Arc<OpenConnection>,
) {
    // If this call fails, only the delay of Nagle's algorithm remains.
    let _ = stream.set_nodelay(true);
    let peer = Arc::new(Peer::new(peer.ip().to_canonical()));
    let short = short.client(gate, &peer, &open);
    let refusing = Arc::clone(&open);
    let ambiguous_paths = open.proxy.settings.ambiguous_paths;
    let service = move |mut request: Request<Body>| match vet(&mut request, ambiguous_paths, &own) {
        Ok(()) => {
            request.extensions_mut().insert(Arc::clone(&peer));
            if !request.body().is_end_stream() {
                request.extensions_mut().insert(BodyCosts::default());
            }
            // A router is always ready.
            Either::Left(router.clone().call(request))
        }
        Err(failure) => {
            let refused = failure.respond(&refusing.proxy.failures, request.version());
            Either::Right(ready(Ok(refused.map(Body::new))))
        }
    };
    client::serve(stream, service, short, &open).await;
}
