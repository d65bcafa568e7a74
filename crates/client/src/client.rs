//! The life of a control port: the snapshot of the start, the servers, and their end.

use std::{
    convert::Infallible,
    fmt::Debug,
    io, mem,
    net::{IpAddr, SocketAddr},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::extract::{ConnectInfo, OriginalUri};
use futures::FutureExt as _;
use http::{Extensions, Uri};
use prometheus::proto::MetricFamily;
use tokio::{sync::watch, task::JoinSet};
use weir_enforce::{AmbiguousPaths, GateOptions, LimitLayer, LiveRules, SyncGate};
use weir_tower::MonotonicClock;

use crate::{
    bootstrap::{self, Start},
    cache::Cache,
    config::{BoundControl, ControlConfig, InvalidOptions},
    control::{self, Control, Tls},
    jwks::Loads,
    leaving::Leaving,
    listen::BindError,
    metrics,
    options::Options,
    serve::Server,
    snapshots::{Serves, Snapshots},
};

/// A running control port, and the rules that it keeps in force. All clones are the same port. The port closes when the
/// last clone is dropped.
#[derive(Clone, Debug)]
pub struct Client(Arc<Running>);

#[derive(Debug)]
struct Running {
    address: SocketAddr,
    rules: LiveRules,
    snapshots: Arc<Snapshots>,
    leaving: Arc<Leaving>,
    clock: MonotonicClock,
    /// `None`: the control port has no TLS.
    tls: Option<Arc<Tls>>,
    /// `None`: tokens are not verified.
    jwks: Option<Arc<Loads>>,
    /// Whether clients must wait for the first snapshot.
    waits: bool,
    servers: Mutex<JoinSet<()>>,
    /// The reason why the first task has ended.
    end: watch::Sender<Option<String>>,
}

/// Publishes the end of a task that must never end, even if the task is aborted.
struct Ending {
    end: watch::Sender<Option<String>>,
    failure: Option<String>,
}

impl Ending {
    fn fail(mut self, failure: String) {
        tracing::error!(reason = failure, "a task that must never end has ended");
        self.failure = Some(failure);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let reason = self.failure.take().unwrap_or_else(|| "the control port is closed".to_owned());
        self.end.send_if_modified(|end| {
            let is_first = end.is_none();
            end.get_or_insert(reason);
            is_first
        });
    }
}

/// The reason why a control port did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// An option is invalid.
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    /// The control port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl BoundControl {
    /// Puts the first snapshot in force and serves the control port, on tokio's current runtime. `paths` is how the
    /// rules read ambiguous paths.
    pub fn start(self, serves: Serves, paths: AmbiguousPaths) -> Client {
        self.start_with(serves, paths, MonotonicClock::start())
    }

    fn start_with(self, serves: Serves, paths: AmbiguousPaths, clock: MonotonicClock) -> Client {
        let Self { config, listener, address } = self;
        if config.is_open() {
            tracing::warn!(control = %address, "--control-plaintext: every client that reaches the control port can change the limits");
        }
        let rules = LiveRules::new(GateOptions { clock, paths, log_keys: config.log_keys });
        let cache = config.snapshot_cache.map(Cache::new);
        let snapshots = Snapshots::new(rules.clone(), clock, cache.clone()).serving(serves);
        let snapshots = Arc::new(snapshots.with_store_secrets(config.store_secrets));
        if let Some(jwks) = &config.jwks {
            rules.verify_with(jwks.first());
        }
        let start = bootstrap::start(&snapshots, config.bootstrap.as_deref(), cache.as_ref());
        let leaving = Arc::new(Leaving::default());
        let control = Arc::new(Control {
            rules: rules.clone(),
            snapshots: Arc::clone(&snapshots),
            leaving: Arc::clone(&leaving),
            clock,
            started: clock.now(),
            ambiguous_paths: paths,
            instance: format!("{:016x}", rand::random::<u64>()),
            bodies: control::Bodies::default(),
        });
        let client = Client(Arc::new(Running {
            address,
            rules,
            snapshots: Arc::clone(&snapshots),
            leaving,
            clock,
            tls: config.tls.clone(),
            jwks: config.jwks.as_ref().map(|jwks| Arc::new(jwks.loads())),
            waits: start == Start::Faulty || (start == Start::Unlimited && config.wait_for_config),
            servers: Mutex::default(),
            end: watch::Sender::default(),
        }));
        let mut local = None;
        match (config.tls.clone(), config.identity) {
            (Some(tls), Some(identity)) => {
                local = Some(control::local_router(Arc::clone(&control)));
                client.spawn(async move { Ok(identity.keep(&tls).await) });
            }
            (Some(tls), None) => client.spawn(async move { Ok(tls.follow().await) }),
            (None, _) => {}
        }
        if let Some((jwks, loads)) = config.jwks.zip(client.0.jwks.clone()) {
            let snapshots = Arc::clone(&snapshots);
            client.spawn(async move { Ok(jwks.follow(snapshots, loads).await) });
        }
        client.spawn(async move { Ok(snapshots.forget_removed().await) });
        let router = control::router(Arc::clone(&control));
        client.spawn(Server { listener, router, tls: config.tls, local, channel: Some(control), clock }.run());
        client
    }
}

impl Client {
    /// The content type of [`metrics`](Self::metrics).
    pub const METRICS_TYPE: &str = metrics::CONTENT_TYPE;

    /// Opens the control port, for a program whose requests [`layer`](Self::layer) limits. The port is served on tokio's
    /// current runtime.
    ///
    /// # Errors
    ///
    /// An option is invalid, a file cannot be read, or the port is in use.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let Options { control, jwks, ambiguous_paths, clock } = options;
        let bound = ControlConfig::try_from(control)?.with_jwks(jwks)?.bind()?;
        Ok(bound.start_with(Serves::Layer, ambiguous_paths, clock.unwrap_or_else(MonotonicClock::start)))
    }

    /// Returns a layer that limits a service by the rules in force.
    ///
    /// Add the layer once: a request that passes two layers of one client is charged twice. In a nested router of axum,
    /// rules read the whole path that the client sent ([`OriginalUri`]).
    ///
    /// Keys with `clientIP` use the address of axum's [`ConnectInfo`], so serve the router by
    /// `into_make_service_with_connect_info::<SocketAddr>()`. Without this, all clients have the address `0.0.0.0`.
    pub fn layer(&self) -> LimitLayer<SyncGate> {
        self.layer_with(|extensions| extensions.get().map(|ConnectInfo::<SocketAddr>(peer)| peer.ip()))
    }

    /// Returns a layer like [`layer`](Self::layer), for a server without axum's [`ConnectInfo`]. `client` returns the
    /// address of a request's connection.
    pub fn layer_with(
        &self,
        client: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> LimitLayer<SyncGate> {
        LimitLayer::new(self.0.rules.gate(client).with_target(sent_target), "weir")
    }

    /// Returns when the program may serve requests. If `wait_for_config` is set or the snapshot of the start is faulty,
    /// it waits for a snapshot. If a rule has scope Fleet, it waits until the operator has ended this program's share, or
    /// until the share begins 20 s after the start: until then, the rule refuses requests.
    pub async fn ready(&self) {
        if self.must_wait() {
            tracing::warn!("waiting for a snapshot: see the log, or PUT a snapshot to /v1/config");
            self.first_snapshot().await;
        }
        self.stores_ready().await;
    }

    /// Returns when a client of the control port has said that the pod is being deleted (`POST /v1/leave`). Clients learn
    /// this at different times, so accept connections until SIGTERM. Close connections after their next response, if
    /// your server can.
    pub async fn asked_to_leave(&self) {
        self.0.leaving.begun().await;
    }

    /// Returns the metrics of the rules, the stores, the snapshots and the control port, in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        metrics::text(self.metric_families()).expect("the families of this crate can be encoded")
    }

    /// Gives the seats of this program back to the stores and the operator, waits until the newest snapshot is saved, and
    /// closes the control port and its connections. If another clone already does this, it returns earlier. The rules stay in
    /// force for the requests that are still in flight. Call this function after the server of the program has ended.
    pub async fn shutdown(self) {
        self.finish().await;
        self.0.leaving.begin();
        self.0.leaving.closed.cancel();
        let mut servers = mem::take(&mut *self.servers());
        servers.shutdown().await;
    }

    /// The address of the control port. For port 0, the kernel has chosen the port.
    pub fn control(&self) -> SocketAddr {
        self.0.address
    }

    /// The rules in force.
    pub fn rules(&self) -> &LiveRules {
        &self.0.rules
    }

    /// The clock of the rules.
    pub fn clock(&self) -> MonotonicClock {
        self.0.clock
    }

    /// Whether the pod is being deleted.
    pub fn leaving(&self) -> &Arc<Leaving> {
        &self.0.leaving
    }

    /// Returns true if the program must not serve requests yet: it waits for its first snapshot, or its first snapshot
    /// is faulty.
    pub fn must_wait(&self) -> bool {
        self.0.waits && self.0.snapshots.origin().is_none()
    }

    /// Returns as soon as a snapshot is in force.
    pub async fn first_snapshot(&self) {
        self.0.snapshots.first().await;
    }

    /// Returns when the rules of scope Fleet in force can admit requests.
    pub async fn stores_ready(&self) {
        self.0.snapshots.stores().ready().await;
    }

    /// Gives unused units of shared limits back, so that other pods can use them, which takes half a second at most. Waits
    /// until the newest snapshot is saved. Call this function when the program serves no more requests.
    pub async fn finish(&self) {
        self.0.snapshots.stores().close().await;
        self.0.snapshots.saved().await;
    }

    /// Returns the metrics of the rules, the stores, the snapshots and the control port.
    pub fn metric_families(&self) -> Vec<MetricFamily> {
        let Running { rules, snapshots, clock, tls, jwks, .. } = &*self.0;
        metrics::families(&rules.load(), snapshots, tls.as_deref(), jwks.as_deref(), clock.now())
    }

    /// Runs a task until the control port closes. The task must never end by itself: see [`ended`](Self::ended).
    pub fn spawn(&self, server: impl Future<Output = io::Result<Infallible>> + Send + 'static) {
        let ending = Ending { end: self.0.end.clone(), failure: None };
        self.servers().spawn(async move {
            match AssertUnwindSafe(server).catch_unwind().await {
                Ok(Ok(never)) => match never {},
                Ok(Err(error)) => ending.fail(error.to_string()),
                Err(_panic) => ending.fail("a task panicked".to_owned()),
            }
        });
    }

    /// Returns the reason when a task that must never end has ended, or when the control port is closed. The rules then
    /// stay as they are, so a program should end, too.
    pub async fn ended(&self) -> String {
        let mut end = self.0.end.subscribe();
        let reason = end.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.expect("this client holds the sender, and the reason is there")
    }

    fn servers(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the target that the client sent. axum saves it, and nested routers see only a part of it.
fn sent_target(extensions: &Extensions) -> Option<&Uri> {
    extensions.get().map(|OriginalUri(uri)| uri)
}
