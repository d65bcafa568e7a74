//! The conversation with one agent: one task per pod that keeps pushing until the agent enforces what it should.
//!
//! A link holds the newest desired content and nothing older. It keeps one connection: a channel over mutual TLS
//! (`weir-channel`), or plain HTTP for agents without certificates. It pushes a change at once, tries again with growing,
//! fully jittered delays, and hears what the agent enforces and what it let through: once a second, or with more than a
//! thousand agents as seldom as [`Poll`] says. What is learned goes to the engine as [`Observation`]s. A link never decides
//! whether that is good: see [`crate::status`].
//!
//! What to do is decided by a pure machine (`machine.rs`); the task does it (`task.rs`).
//!
//! A pod that ends, or whose host is gone or cut off, is noticed without a question, within 5 s however many agents there
//! are: the kernel asks for signs of life each second. An agent that hangs while its kernel answers is noticed when its
//! status does not come, and then it does not greet on a new connection: 3 s more than the interval between two statuses.

mod dial;
mod dial_error;
mod http;
mod machine;
mod poll;
mod rivals;
mod task;
mod trust;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use weir_wire::Status;

pub use poll::Poll;

use dial::Dial;

use crate::identity::{Held, Peer, PodIdentity, TlsFiles};
use crate::leader::Term;
use crate::metrics::Metrics;
use crate::plan::Content;
use crate::world::ObjectKey;

/// How often and how long.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two statuses of an agent, at least.
    pub poll: Duration,
    /// Between two statuses of an agent at most, however many agents there are.
    pub poll_most: Duration,
    /// So many agents a second report before the interval grows.
    pub polls_per_second: u32,
    /// Until an agent counts as not answering. Two misses in a row plus an interval must stay under five seconds, and so
    /// must one and the silence that ends a connection.
    pub timeout: Duration,
    /// Upper bound of the first delay after a failed push.
    pub backoff_first: Duration,
    /// Upper bound of every later one.
    pub backoff_most: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            poll: Duration::from_secs(1),
            poll_most: Duration::from_secs(10),
            polls_per_second: 1000,
            timeout: Duration::from_millis(1500),
            backoff_first: Duration::from_millis(50),
            backoff_most: Duration::from_secs(5),
        }
    }
}

/// What was learned about one agent.
#[derive(Debug)]
pub struct Observation {
    /// Its pod.
    pub pod: ObjectKey,
    /// UID of that pod: an observation of its predecessor must not count.
    pub pod_uid: String,
    /// When.
    pub at: Instant,
    /// What.
    pub seen: Seen,
}

/// What an agent said, or that it said nothing.
#[derive(Clone, Debug)]
pub enum Seen {
    /// It acknowledged this content, whole.
    Applied(Arc<Content>),
    /// It told what is in force and what it counted.
    Status(Arc<Status>),
    /// It does not answer, or refuses what it is sent.
    Failed(Failure),
    /// Whether another operator writes to it: from now on, or no more.
    Contested(bool),
}

/// Why an agent does not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub kind: FailureKind,
    /// For people.
    pub message: String,
}

/// Kinds of [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// No answer, or none that an agent would give.
    Unreachable,
    /// It answered that it does not take the content.
    Refused,
}

/// What all links share.
#[derive(Clone, Debug)]
pub struct Shared {
    /// What the operator shows to agents, and trusts; none: it has no authority, and nobody proves anything.
    pub(crate) credentials: Option<Held>,
    /// Where those are from, if somebody else made them: then an agent proves to be at the host of its URL, not in its pod.
    pub(crate) files: Option<Arc<TlsFiles>>,
    /// How often and how long.
    pub timing: Timing,
    /// Bound what is done at the same time.
    pub lanes: Arc<Lanes>,
    /// Where observations go.
    pub observations: mpsc::Sender<Observation>,
    /// Counters of pushes.
    pub metrics: Metrics,
    /// Nothing is pushed outside of it.
    pub term: Term,
    /// How often agents send their status.
    pub poll: Arc<Poll>,
}

/// Why an agent could not be reached, or a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContactError {
    /// Nobody answered in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// There is no connection.
    #[error("{0}")]
    Connection(String),
    /// The agent has closed the connection.
    #[error("the agent closed the connection")]
    Closed {
        /// Because nothing was heard of the agent's host for too long.
        is_silent: bool,
    },
    /// The agent has said why it closes the connection.
    #[error("{0}")]
    Goodbye(String),
    /// The peer is not the pod's agent, or does not trust this operator.
    #[error("{0}")]
    Untrusted(String),
    /// The peer says what no agent says.
    #[error("not an agent's answer: {0}")]
    Garbage(String),
}

impl ContactError {
    /// As in `weir_operator_pushes_total`.
    fn label(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "timeout",
            Self::Connection(_) | Self::Closed { .. } => "unreachable",
            Self::Goodbye(_) | Self::Untrusted(_) => "untrusted",
            Self::Garbage(_) => "garbage",
        }
    }
}

/// Simultaneous calls and pushes are bounded. Agents that did not answer last time wait in a lane of their own, so that many
/// dead pods do not hold up the push to a living one.
#[derive(Debug)]
pub struct Lanes {
    answering: Arc<Semaphore>,
    silent: Arc<Semaphore>,
}

impl Lanes {
    const ANSWERING: usize = 64;
    const SILENT: usize = 32;

    fn lane(&self, is_silent: bool) -> Arc<Semaphore> {
        if is_silent { self.silent.clone() } else { self.answering.clone() }
    }
}

impl Default for Lanes {
    fn default() -> Self {
        let lane = |places| Arc::new(Semaphore::new(places));
        Self { answering: lane(Self::ANSWERING), silent: lane(Self::SILENT) }
    }
}

/// One agent's link; ends with its last handle.
#[derive(Debug)]
pub struct Link {
    pod_uid: String,
    url: Arc<str>,
    desired: watch::Sender<Arc<Content>>,
    task: AbortHandle,
}

impl Link {
    /// Starts talking to the agent at `url`. Any peer may answer at an `http` URL; at an `https` URL it must prove who it is.
    pub fn start(shared: Arc<Shared>, pod: ObjectKey, pod_uid: String, url: Arc<str>, content: Arc<Content>) -> Self {
        let (desired, newest) = watch::channel(content);
        let peer = match &shared.files {
            Some(files) => Peer::host(url.split_once("://").map_or(&url, |(_, authority)| authority), files.clone()),
            None => Peer::Pod(PodIdentity { key: pod.clone(), uid: pod_uid.clone() }),
        };
        let dial = Dial::new(&url, peer, shared.credentials.clone());
        let task = task::Task::new(shared, pod, pod_uid.clone(), dial, newest);
        // A future holds what it was called with beside what it works on: by a box, thousands are a third as large.
        let task = tokio::spawn(Box::new(task).run()).abort_handle();
        Self { pod_uid, url, desired, task }
    }

    /// Whether this link talks to that agent of that pod.
    pub fn is_for(&self, pod_uid: &str, url: &str) -> bool {
        self.pod_uid == pod_uid && &*self.url == url
    }

    /// Sets what the agent should enforce. Older wishes are forgotten.
    pub fn want(&self, content: &Arc<Content>) {
        self.desired.send_if_modified(|held| {
            let changed = held.revision != content.revision;
            if changed {
                held.clone_from(content);
            }
            changed
        });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}
