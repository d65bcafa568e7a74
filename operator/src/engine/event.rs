//! The events and actions of the engine: the input and the output of its [`EngineMachine`](super::machine::EngineMachine).

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    fleet::Usage,
    leader::Term,
    link::Observation,
    metrics::PodCounts,
    plan::Content,
    report::{Message, WrittenStatus},
    world::{ObjectKey, Update},
};

#[derive(Clone, Copy, Debug)]
pub(super) struct EngineMoment {
    pub(super) now: Instant,
    /// The wall-clock time, for conditions.
    pub(super) timestamp: Timestamp,
}

#[derive(Debug)]
pub(super) enum EngineEvent {
    /// A term began. `None` means that this operator does not lead.
    Term(Option<Term>),
    /// The source reports changes.
    Update(Update),
    /// A link has a new result from its agent.
    Observed(Observation),
    /// A status was written.
    Written(WrittenStatus),
    /// Time has passed. Reported at each [`TICK`](super::TICK).
    Tick,
    /// The time returned by [`EngineMachine::due`](super::machine::EngineMachine::due) has come.
    Due,
    /// [`EngineAction::WriteStatuses`] was requested. Contains what the counter of scope Fleet keeps.
    WriteStatuses(Usage),
    /// The statuses to write are known, which took this long.
    StatusesWritten(Duration),
}

/// An action of the engine. The engine performs actions in order.
#[derive(Debug)]
pub(super) enum EngineAction {
    /// End all links. New links act in this term.
    StartTerm(Option<Term>),
    /// Start a link to the agent at this URL, in place of the pod's link if there is one.
    Link { pod: ObjectKey, uid: Arc<str>, url: Arc<str>, content: Arc<Content> },
    /// Set the content that the pod's link pushes.
    Push { pod: ObjectKey, content: Arc<Content> },
    /// End the pod's link, if there is one.
    Unlink(ObjectKey),
    /// The counter of scope Fleet should expect this pod with this content, or `None` if the pod is gone. `has_run` is
    /// false if its agent has never run.
    Expect { name: Arc<str>, uid: Arc<str>, has_run: bool, content: Option<Arc<Content>> },
    /// The pod with this UID, which the counter expects, is being deleted. `has_run` is false if its agent has never run.
    Leave { uid: Arc<str>, has_run: bool },
    /// All known pods are planned, and the counter expects them.
    Planned,
    /// Set the interval at which agents send their statuses, for this number of agents.
    SpreadStatuses(usize),
    /// Log that everything that existed at the start is listed.
    LogListed { policies: usize, pods: usize },
    /// Set the operator ready: everything is compiled and planned, so this operator could lead.
    Ready,
    /// Handle [`EngineEvent::WriteStatuses`], and then report its duration, including its actions.
    WriteStatuses,
    /// Send this message to the writer.
    Send(Message),
    /// Count the pods of all policies.
    CountPods(PodCounts),
    /// Count the pods of one policy.
    CountPolicyPods(ObjectKey, PodCounts),
    /// Count the policies.
    CountPolicies { accepted: usize, refused: usize },
    /// Count a change that every pod acknowledged after this time.
    CountPropagated(Duration),
}
