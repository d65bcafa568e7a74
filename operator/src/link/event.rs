//! The events and actions of one link: the input and the output of its [`LinkMachine`](super::machine::LinkMachine).

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use weir_channel::ToOperator;
use weir_wire::{LevelsSent, Question};

use super::{ContactError, Seen};
use crate::plan::Content;

/// The circumstances of an event.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkMoment {
    pub(super) now: Instant,
    /// Seconds of Unix time, for the expiry of certificates.
    pub(super) unix: u64,
    /// The sequence for a push at this time, or `None` if pushes are forbidden, because the term has ended or the link
    /// is retired.
    pub(super) sequence: Option<u64>,
    /// The interval at which the agent should send its status.
    pub(super) every: Duration,
}

#[derive(Debug)]
pub(super) enum LinkEvent {
    /// From this time, the agent should enforce this content.
    Wanted(Arc<Content>),
    /// The time returned by [`LinkMachine::due`](super::machine::LinkMachine::due) has come.
    Due,
    /// The permit that [`LinkAction::AcquirePermit`] requested is granted.
    PermitGranted,
    /// The connection is open, and this is the agent's first message.
    Connected {
        /// The time at which the connection's certificates expire, in seconds of Unix time.
        not_after: u64,
        greeting: ToOperator,
    },
    /// The counter of scope Fleet has collected the levels of agents.
    LevelsCollected,
    /// The agent sent this message.
    Received(ToOperator),
    /// The connection ended, or could not be opened.
    Ended(ContactError),
}

/// An action of the task. The task performs actions in order.
#[derive(Debug)]
pub(super) enum LinkAction {
    /// Wait for a permit of the lane (see [`Lanes`](super::Lanes)), then report [`LinkEvent::PermitGranted`]. Without a
    /// connection, open TCP before.
    AcquirePermit { is_silent: bool },
    /// Release the permit.
    ReleasePermit,
    /// Open the channel, then report [`LinkEvent::Connected`] or [`LinkEvent::Ended`].
    Dial,
    /// Close the connection.
    HangUp,
    /// Request the agent's status at this interval.
    RequestStatus(Duration),
    /// Send this content.
    Push { content: Arc<Content>, sequence: u64 },
    /// Record a message from an agent with rules of scope Fleet. Without another one within this time, the agent counts
    /// as cut off.
    RecordMessage(Duration),
    /// Tell the agent that its share is over, if it does not know that.
    Release,
    /// Record that the agent has sent all levels that it knows.
    LevelsSent(LevelsSent),
    /// Answer questions about these contents, which the agent can have in force.
    Answer { questions: Vec<Question>, contents: [Option<Arc<Content>>; 2] },
    /// Count a push by its outcome.
    Count(&'static str, Duration),
    /// Send this observation to the engine.
    Observe(Seen),
}
