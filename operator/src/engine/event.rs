//! What happens to the engine, and what it must do: the input and the output of its
//! [`Machine`](super::machine::Machine).

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    leader::Term,
    link::Observation,
    metrics::PodCounts,
    plan::Content,
    report::{Message, WrittenStatus},
    world::{ObjectKey, Update},
};

/// The time of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// The wall-clock time, for conditions.
    pub(super) timestamp: Timestamp,
}

/// An event.
#[derive(Debug)]
pub(super) enum Event {
    /// A term began. `None`: this operator does not lead.
    Term(Option<Term>),
    /// The source shows changes.
    Update(Update),
    /// A link learned something about its agent.
    Observed(Observation),
    /// A status was written.
    Landed(WrittenStatus),
    /// Time has passed. Reported at each [`TICK`](super::TICK).
    Tick,
    /// The moment [`Machine::due`](super::machine::Machine::due) has come.
    Due,
    /// [`Action::Report`] was requested.
    Report,
    /// The report is performed, and took this long.
    Reported(Duration),
}

/// What the engine must do. It performs actions in order.
#[derive(Debug)]
pub(super) enum Action {
    /// End all links. New ones act in this term.
    Serve(Option<Term>),
    /// Start a link to the agent at this URL, in place of the pod's link if there is one.
    Link { pod: ObjectKey, uid: String, url: Arc<str>, content: Arc<Content> },
    /// Set what the pod's link pushes.
    Push { pod: ObjectKey, content: Arc<Content> },
    /// End the pod's link, if there is one.
    Unlink(ObjectKey),
    /// Divide the statuses of a second among this many agents.
    Spread(usize),
    /// Say that everything that existed at the start is listed.
    Listed { policies: usize, pods: usize },
    /// Everything is compiled and planned, so this operator could lead.
    Ready,
    /// Report [`Event::Report`], and then how long that took, with all its actions.
    Report,
    /// Send this to the writer.
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
