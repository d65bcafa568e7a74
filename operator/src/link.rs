//! The connection to one agent: one task per pod, which pushes until the agent enforces the wanted content.
//!
//! A link stores only the newest wanted content. It has one connection: a channel (`weir-channel`) over mutual TLS, or
//! over TCP for agents without certificates. It pushes a change immediately, and retries with growing, fully jittered
//! delays. It receives the agent's status: the rules in force and the counts. The agent sends its status once a second.
//! With more than a thousand agents, the interval is longer ([`StatusInterval`]). The link reports each result to the
//! engine as an [`Observation`]. A link never judges a result: see [`crate::status`].
//!
//! A pure machine (`machine.rs`) decides, and the task (`task.rs`) performs its actions.
//!
//! If a pod ends, or its host is down or cut off, the link detects it within 5 s for any number of agents, because the
//! kernel probes the host each second. If an agent hangs while its kernel answers, no status arrives, and the agent
//! sends nothing on a new connection. The link detects this after the interval between two statuses and 3 s.

mod bound;
mod budget;
mod dial;
mod dial_error;
mod digest;
mod event;
mod machine;
mod observations;
mod open;
mod other_operator;
mod status_interval;
mod steps;
mod task;
mod trust;

use std::{sync::Arc, time::Duration};

use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::AbortHandle,
    time::Instant,
};
use weir_wire::{Rejection, Status};

use self::dial::Dial;
pub use self::{
    observations::{ObservationReceiver, ObservationSender, observations},
    status_interval::StatusInterval,
};
use crate::{
    clock,
    dialing::{Held, TlsFiles},
    fleet::FleetCounter,
    identity::{Peer, PodIdentity},
    leader::Term,
    metrics::Metrics,
    plan::Content,
    wording::shorten,
    world::ObjectKey,
};

/// Intervals, timeouts and pauses of a link.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The shortest interval between two statuses of an agent.
    pub status_interval: Duration,
    /// The longest interval between two statuses of an agent, for any number of agents.
    pub longest_status_interval: Duration,
    /// The maximum number of statuses per second from all agents together, before the interval grows.
    pub statuses_per_second: u32,
    /// The time after which an agent counts as not answering. To open TCP may take this time, and the answer on the new
    /// connection may take it again.
    pub timeout: Duration,
    /// The time after which the first dial of an agent gives its permit to the dials of other agents. The agent is dialed
    /// again in the lane of silent agents, with the whole `timeout`.
    pub quick_answer: Duration,
    /// The time for which a connection can wait for a permit. Later, the link opens another one: an agent closes a
    /// connection on which nothing arrives for five seconds.
    pub fresh: Duration,
    /// The upper bound of the first delay after a failed push.
    pub backoff_first: Duration,
    /// The upper bound of all later delays.
    pub backoff_most: Duration,
}

impl Timing {
    /// Returns the longest pause after this number of failed pushes in a row.
    fn longest_pause(&self, failures: u32) -> Duration {
        self.backoff_first.saturating_mul(1 << failures.min(16)).min(self.backoff_most)
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            status_interval: Duration::from_secs(1),
            longest_status_interval: Duration::from_secs(10),
            statuses_per_second: 1000,
            timeout: Duration::from_millis(1500),
            quick_answer: Duration::from_millis(500),
            fresh: Duration::from_secs(2),
            backoff_first: Duration::from_millis(50),
            backoff_most: Duration::from_secs(5),
        }
    }
}

/// A result that a link reports about one agent.
#[derive(Debug)]
pub struct Observation {
    /// The agent's pod.
    pub pod: ObjectKey,
    /// The UID of that pod. An observation of an earlier pod with the same name must not count.
    pub pod_uid: Arc<str>,
    /// The time of the observation.
    pub at: Instant,
    /// The result.
    pub seen: Seen,
}

/// A result of the communication with an agent.
#[derive(Clone, Debug)]
pub enum Seen {
    /// The agent acknowledged this whole content.
    Acknowledged(Arc<Content>),
    /// The agent sent its status: what is in force, and its counts.
    Status(Arc<Status>),
    /// The agent does not answer, or rejects the content.
    Failed(Failure),
    /// True when another operator begins to write to the agent, and false when it stops.
    Contested(bool),
}

/// The reason why an agent does not enforce the wanted content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of failure, for programs.
    pub kind: FailureKind,
    /// The description, for people.
    pub message: String,
}

impl Failure {
    /// The maximum length of a message, in bytes. Agents write some of them.
    const LONGEST_MESSAGE: usize = 1024;

    fn new(kind: FailureKind, message: String) -> Self {
        Self { kind, message: shorten(message, Self::LONGEST_MESSAGE) }
    }

    fn withheld(kept: &ObjectKey) -> Self {
        let message = format!(
            "the agent enforces the policy {kept}, which this operator cannot read or compile, so it keeps all its rules \
             as they are: correct that policy, or use the version of the operator that accepted it"
        );
        Self::new(FailureKind::Withheld, message)
    }

    fn of_rejection(rejection: &Rejection) -> Self {
        let mut message = rejection.message.clone();
        for fault in rejection.faults.iter().take(3) {
            message.push_str(&format!("; {}: {}", fault.path, fault.message));
        }
        Self::new(FailureKind::Rejected, message)
    }
}

/// Kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// No answer arrived, or an answer that no agent would send.
    Unreachable,
    /// The agent rejected the content.
    Rejected,
    /// The content was not sent to the agent, which would lose a policy that this operator cannot read or compile.
    Withheld,
}

/// The state that all links share.
#[derive(Clone, Debug)]
pub struct LinkContext {
    /// The operator's certificate and the authorities that it trusts, or `None` if neither side proves its identity.
    pub(crate) credentials: Option<Held>,
    /// The files with the credentials, if users provide them. Then an agent proves the host in its URL, not its pod.
    pub(crate) files: Option<Arc<TlsFiles>>,
    /// Intervals, timeouts and pauses.
    pub timing: Arc<Timing>,
    /// Limits the concurrent dials and pushes.
    pub lanes: Arc<Lanes>,
    /// The channel for observations.
    pub observations: ObservationSender,
    /// Counters of pushes.
    pub metrics: Metrics,
    /// The leader's term. The link must not push outside of it.
    pub term: Term,
    /// The counter of that term.
    pub fleet: Arc<FleetCounter>,
    /// The interval at which agents send their status.
    pub status_interval: Arc<StatusInterval>,
}

/// The reason why an agent could not be reached, or why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContactError {
    /// No answer arrived in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection could not be opened, or failed.
    #[error("{0}")]
    Connection(String),
    /// The agent closed the connection.
    #[error("the agent closed the connection")]
    Closed {
        /// True if the kernel closed the connection because the agent's host was silent for too long.
        is_silent: bool,
    },
    /// The agent sent a goodbye with the reason for closing the connection.
    #[error("{0}")]
    Goodbye(String),
    /// The peer is not the pod's agent, or does not trust this operator.
    #[error("{0}")]
    Untrusted(String),
    /// The peer sent a message that no agent sends.
    #[error("not an agent's answer: {0}")]
    Garbage(String),
}

impl ContactError {
    /// Returns the label in `weir_operator_pushes_total`.
    fn label(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::Connection(_) | Self::Closed { .. } => "unreachable",
            Self::Goodbye(_) | Self::Untrusted(_) => "untrusted",
            Self::Garbage(_) => "garbage",
        }
    }
}

/// Limits the concurrent dials and pushes. Agents that did not answer last time have a separate lane. A new leader does
/// not know which agents these are, and many of them must not delay a push to a live one. So a dial opens TCP before it
/// waits for a permit, and leaves the lane of the other agents after [`Timing::quick_answer`]. A connection that waited for
/// longer than [`Timing::fresh`] is opened again.
#[derive(Debug)]
pub struct Lanes {
    answering: Arc<Lane>,
    silent: Arc<Lane>,
}

#[derive(Debug)]
struct Lane {
    /// Permits to open TCP connections. They cost no processor time.
    connecting: Semaphore,
    /// Permits for handshakes and pushes.
    working: Arc<Semaphore>,
}

impl Lanes {
    const ANSWERING: usize = 64;
    const SILENT: usize = 32;
    /// The number of TCP connections that a lane opens at the same time, for each permit.
    const CONNECTING: usize = 16;

    fn lane(&self, is_silent: bool) -> Arc<Lane> {
        if is_silent { self.silent.clone() } else { self.answering.clone() }
    }
}

impl Default for Lanes {
    fn default() -> Self {
        let lane = |permits| {
            let connecting = Semaphore::new(permits * Self::CONNECTING);
            Arc::new(Lane { connecting, working: Arc::new(Semaphore::new(permits)) })
        };
        Self { answering: lane(Self::ANSWERING), silent: lane(Self::SILENT) }
    }
}

impl Lane {
    /// Waits for a permit to push.
    async fn permit(&self) -> OwnedSemaphorePermit {
        self.working.clone().acquire_owned().await.expect("the lanes are never closed")
    }

    /// Opens TCP, and waits for a permit for the handshake.
    async fn reach(&self, dial: &Dial, timing: Timing) -> (OwnedSemaphorePermit, Result<TcpStream, ContactError>) {
        let _connecting = self.connecting.acquire().await.expect("the lanes are never closed");
        let mut reached = dial.reach(timing.timeout).await;
        let opened_at = clock::now();
        let permit = self.permit().await;
        if reached.is_ok() && clock::now().duration_since(opened_at) > timing.fresh {
            reached = dial.reach(timing.timeout).await;
        }
        (permit, reached)
    }
}

/// The link of one agent. Dropping it ends it.
#[derive(Debug)]
pub struct Link {
    wanted: watch::Sender<Arc<Content>>,
    task: LinkTask,
}

/// The task of a link. Dropping it ends the task.
#[derive(Debug)]
pub struct LinkTask(AbortHandle);

impl Link {
    /// Starts a link to the agent at `url`. At an `http` URL any peer is accepted; at an `https` URL the peer must
    /// prove its identity.
    pub fn start(
        context: Arc<LinkContext>,
        pod: ObjectKey,
        pod_uid: Arc<str>,
        url: &str,
        content: Arc<Content>,
    ) -> Self {
        let (wanted, newest) = watch::channel(content);
        let peer = match &context.files {
            Some(files) => Peer::host(url.split_once("://").map_or(url, |(_, authority)| authority), files.clone()),
            None => Peer::Pod(PodIdentity { key: pod.clone(), uid: pod_uid.clone() }),
        };
        let dial = Dial::new(url, peer, context.credentials.clone());
        let task = task::Task::new(context, pod, pod_uid, dial, newest);
        // A future stores its arguments in addition to the variables that it moves them to. Boxing the task makes each
        // link a third as large.
        let task = tokio::spawn(Box::new(task).run()).abort_handle();
        Self { wanted, task: LinkTask(task) }
    }

    /// Ends the link, because the pod is gone or being deleted. If the agent has rules of scope Fleet, the task
    /// continues until the channel ends, because the agent still serves requests. Without the channel, the agent would
    /// use a share that the counter does not reserve.
    pub fn retire(self) -> LinkTask {
        self.task
    }

    /// Sets the content that the agent should enforce. It replaces earlier content.
    pub fn want(&self, content: &Arc<Content>) {
        self.wanted.send_if_modified(|held| {
            let changed = held.revision != content.revision;
            if changed {
                held.clone_from(content);
            }
            changed
        });
    }
}

impl LinkTask {
    /// Returns true if the task has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for LinkTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
