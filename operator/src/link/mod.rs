//! The conversation with one agent: one task per pod that keeps pushing until the agent enforces what it should.
//!
//! A link holds the newest desired content and nothing older. It pushes a change at once, tries again with growing,
//! fully jittered delays, and listens to what the agent enforces and what it let through: once a second, or with more than a
//! thousand agents as seldom as [`Poll`] says. An agent is asked once and goes on to tell, until it is sent something; in plain
//! text, and of an earlier version, it is asked each time. What is learned goes to the engine as [`Observation`]s. A link never
//! decides whether that is good: see [`crate::status`].
//!
//! A pod that ends, or whose host is gone or cut off, is noticed without a question, within 5 s however many agents there
//! are: the kernel asks for signs of life each second. Of an agent that hangs while its kernel answers a line does not come, and
//! then the answer to a question: 3 s more than the time between two lines.

mod client;
mod connection;
mod following;
mod poll;
mod rivals;
mod task;
mod tls;
mod trust;
mod vigil;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use weir_wire::Status;

pub use client::{Client, ContactError};
pub use poll::Poll;

use crate::identity::{Held, Peer, PodIdentity, TlsFiles};
use crate::leader::Term;
use crate::metrics::Metrics;
use crate::plan::Content;
use crate::world::ObjectKey;

/// How often and how long.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between two questions for an agent's status, at least.
    pub poll: Duration,
    /// The same at most, however many agents there are.
    pub poll_most: Duration,
    /// So many agents a second are asked before the time between grows.
    pub polls_per_second: u32,
    /// Until an agent counts as not answering. Two misses in a row plus a poll must stay under five seconds, and so must
    /// one and the silence that ends a connection.
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
    /// When agents are asked for their status.
    pub poll: Arc<Poll>,
}

/// Simultaneous pushes are bounded, and so are questions for which a connection must be opened first. Agents that did not
/// answer last time wait in a lane of their own, so that many dead pods do not hold up the push to a living one.
#[derive(Debug)]
pub struct Lanes {
    answering: Semaphore,
    silent: Semaphore,
}

impl Lanes {
    const ANSWERING: u32 = 64;
    const SILENT: u32 = 32;

    /// Waits for a place; it is given back with its value.
    async fn place(&self, is_silent: bool) -> SemaphorePermit<'_> {
        let lane = if is_silent { &self.silent } else { &self.answering };
        lane.acquire().await.expect("nobody closes the lanes")
    }
}

impl Default for Lanes {
    fn default() -> Self {
        let lane = |places| Semaphore::new(places as usize);
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
        let client = Client::new(&url, peer, shared.credentials.clone());
        let task = task::Task::new(shared, pod, pod_uid.clone(), client, newest);
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
