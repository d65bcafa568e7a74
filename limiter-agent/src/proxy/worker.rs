//! One worker: a thread with its runtime, its listener, and the connections that the kernel gave it.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::{
    FutureExt,
    future::{Either, ready},
};
use http::Request;
use tokio::{net::TcpStream, runtime::LocalOptions, task::spawn_local, time::MissedTickBehavior};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tower::{Layer, Service};
use weir_core::Time;
use weir_enforce::{GateOptions, Gates, LimitLayer, LimitedBody, RulesInForce, histogram::Histogram};
use weir_tower::MonotonicClock;

use super::{
    Settings,
    address::AppAddress,
    app::{App, IDLE_CHECK},
    body::RequestBody,
    client,
    failure::FailureCounts,
    forward::{Forward, Way, vet},
    headers::Peer,
    plain,
    traffic::Traffic,
    upgrade::Tunnels,
};
use crate::{
    leaving::Leaving,
    places::{Eviction, Place, Places, Rank},
};

/// How long to leave the accept queue alone when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) upstream: Arc<AppAddress>,
    pub(crate) settings: Settings,
    pub(crate) rules: Arc<ArcSwap<RulesInForce>>,
    pub(crate) clock: MonotonicClock,
    pub(crate) failures: Arc<FailureCounts>,
    /// From sending a request to the app until its response begins.
    pub(crate) upstream_time: Arc<Histogram>,
    /// Client connections open now.
    pub(crate) connections: AtomicU64,
    pub(crate) traffic: Arc<Traffic>,
    /// Whether a line about a refusal names the key that was refused.
    pub(crate) log_keys: bool,
    /// One for each client connection that may be served at once.
    pub(crate) places: Arc<Places>,
    /// Each answer is the last on its connection.
    pub(crate) leaving: Arc<Leaving>,
    /// Stop accepting, finish what is in flight.
    pub(crate) drain: CancellationToken,
    /// What has no end by itself ends, too.
    pub(crate) stop: CancellationToken,
    /// Leave at once.
    pub(crate) abort: CancellationToken,
}

/// One of several threads that serve the proxy port.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) listener: TcpListener,
    pub(crate) proxy: Arc<Proxy>,
}

impl Worker {
    /// Serves until the drain is over.
    ///
    /// # Errors
    ///
    /// If there is no runtime to be had.
    pub(crate) fn run(self) -> io::Result<()> {
        let options = LocalOptions::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(options)?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> io::Result<()> {
        let Self { listener, proxy } = self;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let app = App::new(&proxy.upstream, proxy.settings.upstream_http2);
        let plain = plain::Shared::new(&proxy);
        let options =
            GateOptions { clock: proxy.clock, paths: proxy.settings.ambiguous_paths, log_keys: proxy.log_keys };
        let gates = Gates::new(Arc::clone(&proxy.rules), options);
        let tasks = TaskTracker::new();
        let tunnels = Tunnels { tasks: tasks.clone(), drain: Rc::new(proxy.stop.clone()) };
        let start = |stream, peer, place: Option<Place>| {
            let open = Open::new(&proxy, place, tasks.token());
            let gates = gates.clone();
            let (app, plain, tunnels) = (Rc::clone(&app), plain.clone(), tunnels.clone());
            // Not the tracker's own way to spawn, which would be one more function to come back through with each request.
            spawn_local(connection(stream, peer, gates, app, plain, tunnels, open));
        };

        plain.iter().for_each(|plain| {
            let plain = Rc::clone(plain);
            spawn_local(async move { plain.watch().await });
        });
        let mut up = proxy.upstream.up();
        let mut down = false;
        let mut idle_check = tokio::time::interval(IDLE_CHECK);
        idle_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // One for which there is no place yet. All others wait in the kernel's queue.
        let mut waiting = None;
        loop {
            tokio::select! {
                accepted = listener.accept(), if waiting.is_none() => match accepted {
                    Ok((stream, peer)) => match proxy.places.try_take(peer.ip(), Rank::Idle, proxy.clock.now()) {
                        Some(place) => start(stream, peer, Some(place)),
                        None => waiting = Some((stream, peer)),
                    },
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                place = place_for(&proxy, waiting.as_ref()), if waiting.is_some() => {
                    if let Some((stream, peer)) = waiting.take() {
                        start(stream, peer, Some(place));
                    }
                }
                _ = idle_check.tick() => {
                    app.close_idle();
                    gates.refresh();
                    plain.iter().for_each(|plain| plain.close_idle());
                    if down {
                        up = proxy.upstream.up();
                        down = up.is_cancelled();
                        plain.iter().filter(|_| !down).for_each(|plain| plain.go_on());
                    }
                }
                () = up.cancelled(), if !down => {
                    down = true;
                    plain.iter().for_each(|plain| plain.drain());
                }
                () = proxy.drain.cancelled() => break,
            }
        }
        plain.iter().for_each(|plain| plain.drain());
        if let Some((stream, peer)) = waiting {
            start(stream, peer, None);
        }
        // The kernel has promised a connection to the clients in the queue.
        while let Some(Ok((stream, peer))) = listener.accept().now_or_never() {
            start(stream, peer, None);
        }
        drop(listener);
        tasks.close();
        tokio::select! {
            () = tasks.wait() => {}
            () = proxy.abort.cancelled() => {}
        }
        Ok(())
    }
}

/// A place for a connection that waits, once there is one.
async fn place_for(proxy: &Proxy, waiting: Option<&(TcpStream, SocketAddr)>) -> Place {
    match waiting {
        Some((_, peer)) => proxy.places.take(peer.ip(), Rank::Idle, proxy.clock).await,
        None => std::future::pending().await,
    }
}

/// One client connection, as long as it is open: through the limits, or as a tunnel later.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) proxy: Arc<Proxy>,
    /// None for one that came when the drain began.
    place: Option<Place>,
    /// The drain waits for it.
    _tracked: TaskTrackerToken,
}

impl Open {
    fn new(proxy: &Arc<Proxy>, place: Option<Place>, tracked: TaskTrackerToken) -> Arc<Self> {
        proxy.connections.fetch_add(1, Relaxed);
        proxy.traffic.accept();
        Arc::new(Self { proxy: Arc::clone(proxy), place, _tracked: tracked })
    }

    /// Nothing is asked on it from now on: a newcomer may have its place.
    pub(super) fn rest(&self, now: Time) {
        if let Some(place) = &self.place {
            place.rest(Rank::Idle, now);
        }
    }

    /// Something is asked on it from now on. False if it has lost its place and is to be closed at once; one that may take its time
    /// answers what it was asked.
    pub(super) fn work(&self) -> bool {
        self.place.as_ref().is_none_or(Place::work)
    }

    /// Whether it has lost its place.
    pub(super) fn eviction(&self) -> Eviction {
        self.place.as_ref().map_or(Eviction::No, Place::eviction)
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.eviction() != Eviction::No
    }

    /// Returns once it has lost its place.
    pub(super) async fn evicted(&self) {
        match &self.place {
            Some(place) => place.gone().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.proxy.connections.fetch_sub(1, Relaxed);
    }
}

/// Serves one client until it leaves or the drain sends it away.
async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    gates: Gates,
    app: Rc<App>,
    plain: Option<Rc<plain::Shared>>,
    tunnels: Tunnels,
    open: Arc<Open>,
) {
    // Only Nagle's delay is lost if this fails.
    let _ = stream.set_nodelay(true);
    let proxy = &open.proxy;
    let ip = peer.ip().to_canonical();
    let gate = gates.of(ip);
    drop(gates);
    let peer = Rc::new(Peer::new(ip));
    let plain = plain.map(|shared| plain::Client {
        shared,
        gate: gate.clone(),
        peer: Rc::clone(&peer),
        open: Arc::clone(&open),
    });
    let way = Way { app, proxy: Arc::clone(proxy), tunnels, peer, gate: gate.clone() };
    let forward = Forward(Rc::new(way));
    let limited = LimitLayer::new(gate, "weir-agent").layer(forward);
    let vetting = Arc::clone(&open);
    let service = move |request: Request<RequestBody>| match vet(&request, vetting.proxy.settings.ambiguous_paths) {
        // Neither the layer nor the proxy has to be waited for: both are always ready.
        Ok(()) => Either::Left(limited.clone().call(request)),
        Err(failure) => {
            let refused = failure.respond(&vetting.proxy.failures, request.version());
            Either::Right(ready(Ok(refused.map(LimitedBody::plain))))
        }
    };
    client::serve(stream, service, plain, &open).await;
}
