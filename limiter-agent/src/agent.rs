//! The life cycle of the agent: bind everything, run, drain.

use std::{convert::Infallible, future::Future, net::TcpListener, pin::pin, sync::Arc, thread, time::Duration};

use anyhow::Context;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_client::{
    BindError, BoundControl, Serves,
    agent::{BoundSockets, ConnectionSlots, Leaving, bind, bind_shared, bound_address, serve_plain},
};
use weir_enforce::{AmbiguousPaths, LiveRules};
use weir_tower::MonotonicClock;

use crate::{
    config::{Config, FrontConfig},
    front::Front,
    metrics::Metrics,
    open_files::{self, OpenFiles},
    proxy::{AppAddress, Proxy},
    ready::{Readiness, Stage},
    service::RateLimitService,
    telemetry::{self, Telemetry},
};

/// The minimum time to finish responses, even if the pod's deletion was announced long ago.
const LEAST_DRAIN: Duration = Duration::from_secs(1);

/// The time limit for workers to exit after the drain.
const ABORT_TIMEOUT: Duration = Duration::from_secs(1);

/// An agent that has bound all its listeners and does not serve yet.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    addresses: Addresses,
    proxy: BoundSockets,
    control: BoundControl,
    telemetry: TcpListener,
}

/// The bound addresses. For port 0, the kernel has chosen the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// The proxy port.
    pub listen: std::net::SocketAddr,
    /// The control port.
    pub control: std::net::SocketAddr,
    /// The telemetry port.
    pub telemetry: std::net::SocketAddr,
}

impl Agent {
    /// Binds every listener first, so that nothing runs if one of them fails.
    ///
    /// # Errors
    ///
    /// Returns [`BindError`], which names the flag, if a listener cannot be bound.
    pub fn bind(config: Config) -> Result<Self, BindError> {
        let proxy = bind_shared("--listen", config.listen, config.workers.get())?;
        let control = config.control.clone().bind()?;
        let telemetry = bind("--telemetry", config.telemetry)?;
        let addresses = Addresses {
            listen: proxy.address(),
            control: control.address(),
            telemetry: bound_address("--telemetry", config.telemetry, &telemetry)?,
        };
        Ok(Self { config, addresses, proxy, control, telemetry })
    }

    /// The addresses on which this agent listens.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Serves until `shutdown` completes, then drains.
    ///
    /// # Errors
    ///
    /// Returns an error if the addresses file cannot be written, or if a task that must never end has ended.
    pub fn run(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        // The main thread serves the control port and the telemetry port. The workers have their own threads.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(shutdown))
    }

    async fn serve(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { config, addresses, proxy: listeners, control, telemetry } = self;
        let open_files = open_files::raise();
        let (paths, serves) = match &config.front {
            FrontConfig::Proxy { settings, .. } => (settings.ambiguous_paths, Serves::Requests),
            FrontConfig::Service { .. } => (AmbiguousPaths::Keep, Serves::Descriptors),
        };
        let client = control.start(serves, paths);
        let (clock, leaving) = (client.clock(), Arc::clone(client.leaving()));
        let front = front(&config, open_files, addresses.listen, client.rules(), clock, &leaving);
        let readiness = Arc::new(Readiness::default());
        let metrics = Metrics::new(front.clone(), client.clone());
        let telemetry_state = Telemetry::new(metrics, Arc::clone(&readiness));
        match front.clone() {
            Front::Proxy(proxy) => client.spawn(async move { Ok(proxy.upstream.follow().await) }),
            Front::Service(service) => {
                if let Some(tls) = service.tls.clone() {
                    client.spawn(async move { Ok(tls.follow().await) });
                }
            }
        }
        client.spawn(serve_plain(telemetry, telemetry::router(telemetry_state), clock));
        announce(&config, addresses)?;

        // The first poll installs the signal handlers, so that the agent handles even a signal that arrives now.
        let mut shutdown = pin!(shutdown);
        if futures::poll!(&mut shutdown).is_ready() {
            return Ok(());
        }
        if client.must_wait() {
            tracing::warn!("waiting: the port for clients stays closed until a snapshot is in force");
            tokio::select! {
                () = &mut shutdown => return Ok(()),
                () = client.first_snapshot() => {}
                ended = client.ended() => anyhow::bail!("a server ended before the agent did: {ended}"),
            }
        }
        front.open().await;
        let mut workers = Workers::start(listeners.listen()?, &front)?;
        readiness.enter(Stage::Joining);
        let Addresses { listen, control, telemetry } = addresses;
        let upstream = match &config.front {
            FrontConfig::Proxy { upstream, .. } => Some(tracing::field::display(upstream)),
            FrontConfig::Service { .. } => None,
        };
        tracing::info!(%listen, %control, %telemetry, upstream, workers = config.workers, "ready");

        // The time at which the pod's termination period began. The drain is a part of this period.
        let mut since = None;
        let is_gone = async {
            leaving.begun().await;
            since = Some(clock.now());
            front.is_gone(&leaving).await;
        };
        let is_joined = async {
            client.stores_ready().await;
            readiness.enter(Stage::Serving);
            std::future::pending::<Infallible>().await
        };
        let is_signalled = tokio::select! {
            () = &mut shutdown => true,
            () = is_gone => false,
            never = is_joined => match never {},
            ended = workers.ended.recv() => anyhow::bail!("a worker ended before the agent did: {ended:?}"),
            ended = client.ended() => anyhow::bail!("a server ended before the agent did: {ended}"),
        };

        readiness.enter(Stage::Draining);
        leaving.begin();
        tracing::info!(drain = ?config.drain, "draining: no new connections, finishing requests in flight");
        front.drain().await;
        if !is_signalled {
            tracing::info!("the app no longer accepts connections: waiting for the stop signal");
            tokio::select! {
                () = &mut shutdown => {}
                ended = client.ended() => anyhow::bail!("a server ended before the agent did: {ended}"),
            }
        }
        front.stop();
        let used = since.map_or(Duration::ZERO, |since| clock.now().duration_since(since));
        let drain = config.drain.saturating_sub(used).max(LEAST_DRAIN.min(config.drain));
        if tokio::time::timeout(drain, workers.all_ended()).await.is_err() {
            tracing::warn!("the drain is over: closing the remaining connections");
            front.abort();
            let _ = tokio::time::timeout(ABORT_TIMEOUT, workers.all_ended()).await;
        }
        client.finish().await;
        tracing::info!("drained");
        Ok(())
    }
}

/// The worker threads. Each thread reports its result when it ends.
struct Workers {
    running: usize,
    ended: mpsc::UnboundedReceiver<std::io::Result<()>>,
}

impl Workers {
    fn start(listeners: Vec<TcpListener>, front: &Front) -> anyhow::Result<Self> {
        let (tell, ended) = mpsc::unbounded_channel();
        let running = listeners.len();
        for (index, listener) in listeners.into_iter().enumerate() {
            let (front, tell) = (front.clone(), tell.clone());
            thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || tell.send(front.run_worker(listener)))
                .context("cannot start a worker")?;
        }
        Ok(Self { running, ended })
    }

    async fn all_ended(&mut self) {
        while self.running > 0 && self.ended.recv().await.is_some() {
            self.running -= 1;
        }
    }
}

/// Creates the server of the port for clients.
fn front(
    config: &Config,
    open_files: OpenFiles,
    listen: std::net::SocketAddr,
    rules: &LiveRules,
    clock: MonotonicClock,
    leaving: &Arc<Leaving>,
) -> Front {
    let workers = config.workers.get();
    match &config.front {
        FrontConfig::Proxy { upstream, settings } => {
            // Each client connection can need a connection to the app.
            let most_connections = open_files.fit(settings.max_connections.get() as usize, workers, 2);
            Front::Proxy(Arc::new(Proxy {
                upstream: Arc::new(AppAddress::new(*upstream, listen, &leaving.closed)),
                settings: settings.clone(),
                rules: rules.clone(),
                clock,
                failures: Arc::default(),
                upstream_time: Arc::default(),
                connections: 0.into(),
                traffic: Arc::default(),
                // Behind a load balancer all clients have one address, so one address is allowed to take all slots.
                slots: ConnectionSlots::new(most_connections, most_connections),
                partial_heads: 0.into(),
                stalled_uploads: Arc::default(),
                leaving: Arc::clone(leaving),
                drain: leaving.closed.clone(),
                stop: CancellationToken::new(),
                abort: CancellationToken::new(),
            }))
        }
        FrontConfig::Service { tls, max_connections, max_streams } => {
            let bounds = (open_files.fit(*max_connections, workers, 1), *max_streams);
            Front::Service(Arc::new(RateLimitService::new(rules.clone(), clock, tls.clone(), bounds)))
        }
    }
}

fn announce(config: &Config, addresses: Addresses) -> anyhow::Result<()> {
    if let Some(path) = &config.addresses_file {
        // The file is renamed into place, so that a reader never reads an incomplete file.
        let partial = path.with_extension("partial");
        let write = std::fs::write(&partial, serde_json::to_vec(&addresses)?);
        write
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("cannot write --addresses-file {}", path.display()))?;
    }
    Ok(())
}
