//! One worker: a thread with its runtime, its listener, and the connections that the kernel gave it.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::FutureExt;
use http::HeaderValue;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpStream, task::LocalSet, time::MissedTickBehavior};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Layer, Service};
use weir_tower::MonotonicClock;

use super::{
    body::RequestBody,
    failure::FailureCounts,
    forward::Forward,
    pool::{IDLE_CHECK, Pool},
    upgrade::Tunnels,
};
use crate::rules::{Gate, LimitLayer, RulesInForce};

/// How long a client may take to send a request's head, and how long it may keep a connection idle: longer than load
/// balancers do (60 s mostly), so that it is they who close.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// The same for a connection that was waiting to be accepted when the drain began.
const LATE_HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to leave the accept queue alone when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) upstream: SocketAddr,
    pub(crate) rules: Arc<ArcSwap<RulesInForce>>,
    pub(crate) clock: MonotonicClock,
    pub(crate) failures: Arc<FailureCounts>,
    /// Client connections open now.
    pub(crate) connections: AtomicU64,
    /// Stop accepting, finish what is in flight.
    pub(crate) drain: CancellationToken,
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, self.serve())
    }

    async fn serve(self) -> io::Result<()> {
        let Self { listener, proxy } = self;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let pool = Pool::new(proxy.upstream);
        let tasks = TaskTracker::new();
        let tunnels = Tunnels { tasks: tasks.clone(), drain: Rc::new(proxy.drain.clone()) };
        let accept = |stream, peer| {
            tasks.spawn_local(connection(stream, peer, Rc::clone(&pool), tunnels.clone(), Arc::clone(&proxy)));
        };

        let mut idle_check = tokio::time::interval(IDLE_CHECK);
        idle_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => accept(stream, peer),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                _ = idle_check.tick() => pool.close_idle(),
                () = proxy.drain.cancelled() => break,
            }
        }
        // Whoever is in the queue was promised a connection by the kernel.
        while let Some(Ok((stream, peer))) = listener.accept().now_or_never() {
            accept(stream, peer);
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

/// Serves one client until it leaves or the drain ends its keep-alive.
async fn connection(stream: TcpStream, peer: SocketAddr, pool: Rc<Pool>, tunnels: Tunnels, proxy: Arc<Proxy>) {
    proxy.connections.fetch_add(1, Relaxed);
    // Only Nagle's delay is lost if this fails.
    let _ = stream.set_nodelay(true);
    let ip = peer.ip().to_canonical();
    let forwarded_for = HeaderValue::from_str(&ip.to_string()).expect("an address is a valid field value");
    let gate = Gate::new(Arc::clone(&proxy.rules), proxy.clock, ip);
    let failures = Arc::clone(&proxy.failures);
    let forward = Forward { pool, failures, tunnels, peer: forwarded_for, gate: gate.clone() };
    let limited = LimitLayer::new(gate).layer(forward);
    // Neither the layer nor the proxy has to be waited for: both are always ready.
    let service = hyper::service::service_fn(move |request| limited.clone().call(RequestBody::of(request)));

    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    // A shutdown would close a connection that has not sent anything yet; one from the accept queue gets its turn.
    let late = proxy.drain.is_cancelled();
    http.keep_alive(!late).header_read_timeout(if late { LATE_HEAD_TIMEOUT } else { HEAD_TIMEOUT });
    let mut serving = pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = proxy.drain.cancelled(), if !late => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "client connection ended");
    }
    proxy.connections.fetch_sub(1, Relaxed);
}
