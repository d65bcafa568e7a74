//! The whole operator: connects a source, the engine and a sink, and runs until stopped.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kube::Client;
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    engine::{Engine, SourceEnded},
    fleet::FleetCounter,
    identity::Identity,
    inject::Injection,
    leader::{self, Campaign, LeaseName, Restored, Term, TermReceiver},
    link::{Lanes, LinkContext, StatusInterval, Timing, observations},
    metrics::Metrics,
    report::{self, ClusterSink, FileSink, Message, Sink},
    serve,
    source::{
        cluster,
        directory::{Directory, DirectoryError, Remark, StandaloneInputs},
        objects::IdentityProof,
    },
    telemetry::{self, Heartbeat, Ready},
    world::Update,
};

/// The default of the minimum time between two status writes that change only traffic counts.
pub const TRAFFIC_INTERVAL: Duration = Duration::from_secs(10);
/// The time limit for writing the last reports at the end, and again for releasing the Lease: together less than 2 s.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(900);
/// The time for which the webhook and the identity service run after the last reports. Services route to this pod until
/// every node has learned that it terminates, and a pod created in that time must get its agent and snapshot. This time
/// must be shorter than the pod's grace period.
const SERVE_AFTER_STOP: Duration = Duration::from_secs(4);

/// An operator that has opened its source but does nothing yet.
#[derive(Debug)]
pub struct Operator {
    source: Source,
    traffic_interval: Duration,
    timing: Timing,
    metrics: Metrics,
    ready: Ready,
    injection: Option<Injection>,
    identity: Option<Identity>,
    heartbeat: Heartbeat,
}

/// The settings with which an operator takes part in the election of the cluster's leader.
#[derive(Clone, Debug)]
pub struct Candidacy {
    /// The Lease that names the leader.
    pub lease: LeaseName,
    /// The name of this operator in the Lease. No other running process may have the same name.
    pub identity: String,
    /// The duration of the Lease, and how often the leader renews it.
    pub timing: leader::LeaseTiming,
}

enum Source {
    Cluster { client: Client, namespaces: Vec<String>, instance: String, candidacy: Box<Candidacy> },
    Directory { state: PathBuf, directory: Box<Directory>, reload: Arc<Notify> },
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cluster { .. } => "Cluster",
            Self::Directory { .. } => "Directory",
        })
    }
}

/// The error of an operator that ended without a request to stop.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum OperatorError {
    /// The source ended.
    Source(#[from] SourceEnded),
    /// The cluster was restored to an earlier state.
    Restored(#[from] Restored),
}

impl Operator {
    /// Returns an operator for a cluster, which runs as leader or standby. If `namespaces` is empty, it watches all
    /// namespaces. `instance` names this operator in Events.
    pub fn cluster(client: Client, namespaces: Vec<String>, instance: String, candidacy: Candidacy) -> Self {
        Self::new(Source::Cluster { client, namespaces, instance, candidacy: Box::new(candidacy) })
    }

    /// Returns an operator for a directory of policies and a list of agents. It reads both again when `reload` is
    /// notified.
    ///
    /// # Errors
    ///
    /// The directory cannot be read or watched, or the list of agents is invalid.
    pub fn standalone(inputs: &StandaloneInputs, reload: Arc<Notify>) -> Result<Self, DirectoryError> {
        let directory = Box::new(Directory::open(inputs)?);
        Ok(Self::new(Source::Directory { state: inputs.state().to_owned(), directory, reload }))
    }

    fn new(source: Source) -> Self {
        Self {
            source,
            traffic_interval: TRAFFIC_INTERVAL,
            timing: Timing::default(),
            metrics: Metrics::default(),
            ready: Ready::default(),
            injection: None,
            identity: None,
            heartbeat: Heartbeat::new(clock::since_boot()),
        }
    }

    /// Enables the injection of the agent into new pods that request it. A standalone operator ignores this setting.
    #[must_use]
    pub(crate) fn injection(self, injection: Option<Injection>) -> Self {
        Self { injection, ..self }
    }

    /// Enables mutual TLS with agents, and issues their certificates. A standalone operator ignores this setting.
    #[must_use]
    pub(crate) fn identity(self, identity: Option<Identity>) -> Self {
        Self { identity, ..self }
    }

    /// Sets the minimum time between two writes of traffic into the status.
    #[must_use]
    pub fn traffic_interval(self, traffic_interval: Duration) -> Self {
        Self { traffic_interval, ..self }
    }

    /// Returns the operator's metrics.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Returns the operator's readiness, which is set once everything that existed at the start is compiled.
    pub fn ready(&self) -> Ready {
        self.ready.clone()
    }

    /// Runs until `stop` is cancelled; serves telemetry on `listener` if there is one.
    ///
    /// # Errors
    ///
    /// The source ended without a request to stop, or the cluster was restored to an earlier state.
    pub async fn run(self, listener: Option<TcpListener>, stop: CancellationToken) -> Result<(), OperatorError> {
        let telemetry = listener.map(|listener| self.serve_telemetry(listener, stop.clone()));
        let (update_tx, update_rx) = mpsc::channel(256);
        let (observation_tx, observation_rx) = observations();
        // Unbounded, because the engine must never wait for the apiserver. The engine paces its reports, and the
        // writer keeps only the newest of each policy.
        let (report_tx, report_rx) = mpsc::unbounded_channel();
        let (written_tx, written_rx) = mpsc::channel(256);
        let (request_tx, mut request_rx) = mpsc::channel(64);

        let (credentials, files) = match &self.source {
            Source::Directory { directory, .. } => directory.dialing().unzip(),
            Source::Cluster { .. } => (self.identity.as_ref().map(Identity::dialing), None),
        };
        let context = LinkContext {
            credentials,
            files,
            timing: Arc::new(self.timing),
            lanes: Arc::new(Lanes::default()),
            observations: observation_tx,
            metrics: self.metrics.clone(),
            term: Term::over(),
            fleet: FleetCounter::new(Term::over(), self.metrics.clone()),
            status_interval: Arc::new(StatusInterval::new(self.timing)),
        };
        let serving = CancellationToken::new();
        let stays = self.injection.is_some() || self.identity.is_some();
        if let (Some(injection), Source::Cluster { client, .. }) = (self.injection, &self.source) {
            let (client, metrics, ready) = (client.clone(), self.metrics.clone(), self.ready.clone());
            let directions = self.identity.as_ref().map(Identity::directions);
            tokio::spawn(injection.run(client, request_tx, directions, metrics, ready, serving.clone()));
        }
        let proof = if self.identity.is_some() { IdentityProof::Required } else { IdentityProof::NotRequired };
        if let (Some(identity), Source::Cluster { client, .. }) = (self.identity, &self.source) {
            let (client, metrics, ready) = (client.clone(), self.metrics.clone(), self.ready.clone());
            tokio::spawn(identity.run(client, metrics, ready, serving.clone()));
        }
        let resign = CancellationToken::new();
        let (terms, campaign) = start_campaign(&self.source, &self.metrics, &self.ready, resign.clone(), stop.clone());
        let engine = Engine::new(context, self.ready, self.heartbeat, report_tx.clone(), self.traffic_interval);
        let (sink, source) = start_source(self.source, proof, update_tx, report_tx, self.metrics.clone());
        let writer = tokio::spawn(report::run(sink, report_rx, written_tx, self.metrics));

        let outcome = engine.run(update_rx, observation_rx, written_rx, &mut request_rx, terms, stop.clone()).await;
        stop.cancel();
        source.abort();
        // An aborted task returns an error, which carries no information.
        let _ = source.await;
        let finish_writes = async {
            if timeout(SHUTDOWN_TIMEOUT, writer).await.is_err() {
                tracing::warn!("the last reports were not written in time");
            }
            // Another operator may lead only after the last write.
            resign.cancel();
            match timeout(SHUTDOWN_TIMEOUT, campaign).await {
                Ok(Ok(outcome)) => outcome,
                // A panic is in the log.
                Ok(Err(_)) => Ok(()),
                Err(_) => {
                    tracing::warn!("the lease was not released in time");
                    Ok(())
                }
            }
        };
        let outcome = match outcome {
            Ok(known) => {
                let stay = async {
                    let finished = finish_writes.await;
                    if stays {
                        sleep(SERVE_AFTER_STOP).await;
                    }
                    finished
                };
                tokio::select! {
                    never = known.answer(&mut request_rx) => match never {},
                    finished = stay => finished.map_err(OperatorError::from),
                }
            }
            Err(ended) => {
                // The first error is the cause.
                let _ = finish_writes.await;
                Err(ended.into())
            }
        };
        serving.cancel();
        if let Some(telemetry) = telemetry {
            let _ = timeout(SHUTDOWN_TIMEOUT, telemetry).await;
        }
        outcome
    }

    fn serve_telemetry(&self, listener: TcpListener, stop: CancellationToken) -> JoinHandle<()> {
        let router = telemetry::router(self.metrics.clone(), self.ready.clone(), self.heartbeat.clone());
        tokio::spawn(async move {
            stop.run_until_cancelled(serve::run(listener, router, telemetry::IDLE)).await;
        })
    }
}

/// Starts to compete for leadership. A standalone operator has no rivals and leads immediately. A campaign that fails
/// cancels `stop`.
fn start_campaign(
    source: &Source,
    metrics: &Metrics,
    ready: &Ready,
    resign: CancellationToken,
    stop: CancellationToken,
) -> (TermReceiver, JoinHandle<Result<(), Restored>>) {
    match source {
        Source::Cluster { client, candidacy, .. } => {
            let Candidacy { lease, identity, timing } = &**candidacy;
            let (metrics, ready) = (metrics.clone(), ready.clone());
            let (campaign, terms) = Campaign::new(client.clone(), lease, identity.clone(), *timing, metrics, ready);
            let campaign = async move {
                let outcome = campaign.run(resign).await;
                if let Err(restored) = &outcome {
                    tracing::error!("{restored}");
                    stop.cancel();
                }
                outcome
            };
            (terms, tokio::spawn(campaign))
        }
        Source::Directory { .. } => {
            metrics.set_leader(true);
            let (_, terms) = watch::channel(Some(Term::unbounded()));
            (terms, tokio::spawn(async { Ok(()) }))
        }
    }
}

fn start_source(
    source: Source,
    proof: IdentityProof,
    updates: mpsc::Sender<Update>,
    reports: mpsc::UnboundedSender<Message>,
    metrics: Metrics,
) -> (Sink, JoinHandle<()>) {
    match source {
        Source::Cluster { client, namespaces, instance, .. } => {
            let sink = Sink::Cluster(ClusterSink::new(client.clone(), instance));
            (sink, tokio::spawn(cluster::run(client, namespaces, proof, updates, metrics)))
        }
        Source::Directory { state, directory, reload } => {
            let sink = Sink::Files(Arc::new(FileSink::new(state)));
            let remark = move |remark| {
                let report = match remark {
                    Remark::Notice(notice) => Message::Notice(notice.to_string()),
                    Remark::Forgotten(key) => Message::Removed(key),
                    Remark::Stores(file, stores) => Message::Stores(file, stores),
                };
                // The channel closes only when the process ends.
                let _ = reports.send(report);
            };
            (sink, tokio::spawn(directory.run(updates, remark, metrics, reload)))
        }
    }
}
