//! The open connection of a link: when its agent must send the next message, and whether it sends too many.

use std::time::Duration;

use tokio::time::Instant;
use weir_channel::ToOperator;
use weir_wire::{SnapshotInForce, Status};

use super::dial::UNACKNOWLEDGED;
use crate::{plan::Content, world::ObjectKey};

/// The maximum number of early messages from an agent before its next status can be scheduled.
const MOST_EARLY: u32 = 1000;
/// The time after which a message of the agent shows that it has got a request. Without the request, the kernel would
/// have ended the connection.
const GOT: Duration = UNACKNOWLEDGED.saturating_mul(2);

#[derive(Debug)]
pub(super) enum Connection {
    None,
    Dialing,
    Open(Open),
}

impl Connection {
    /// Returns a policy that the agent has in force, and that this operator cannot read or compile. The agent must not
    /// get `wanted` while there is one.
    pub(super) fn kept<'a>(&self, wanted: &'a Content) -> Option<&'a ObjectKey> {
        let Self::Open(open) = self else { return None };
        open.keeps.iter().find_map(|uid| wanted.unreadable.get(uid))
    }
}

#[derive(Debug)]
pub(super) struct Open {
    /// The time at which the connection's certificates expire, in seconds of Unix time.
    pub(super) not_after: u64,
    /// The interval that was requested from the agent.
    pub(super) every: Duration,
    /// A shorter interval that the agent can still have, and the time from which a message shows that it has `every`.
    shorter: Option<(Duration, Instant)>,
    /// The time before which the agent must send a message.
    pub(super) deadline: Instant,
    /// True if the deadline was extended because the operator itself was late.
    pub(super) is_graced: bool,
    /// The time of the last message that was not early. `early` counts the early messages since then.
    on_time_at: Instant,
    early: u32,
    /// True if the agent has acknowledged a snapshot on this connection.
    pub(super) has_acknowledged: bool,
    /// The snapshot in force according to the last status.
    pub(super) in_force: Option<SnapshotInForce>,
    /// The UIDs of the policies in force that this operator could not read or compile at that time.
    pub(super) keeps: Vec<String>,
}

/// Returns the UIDs of the policies that are in force according to a status, and that this operator cannot read or
/// compile.
pub(super) fn kept(status: &Status, wanted: &Content) -> Vec<String> {
    let is_in_force = |uid: &&String| status.policies.iter().any(|policy| policy.uid == **uid);
    wanted.unreadable.keys().filter(is_in_force).cloned().collect()
}

/// Whether the agent may send the message that it sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    InTime,
    TooOften,
}

/// What the statuses on this connection say about the agent's acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confirmation {
    /// No status has come since the last acknowledgement.
    Acknowledged,
    /// A status has confirmed the acknowledgement, or there was none.
    Confirmed,
    /// A status has contradicted the acknowledgement. Until a status confirms one, acknowledgements do not count.
    Contradicted,
}

impl Open {
    pub(super) fn new(not_after: u64, every: Duration, now: Instant, timeout: Duration) -> Self {
        Self {
            not_after,
            every,
            shorter: None,
            deadline: now + every + timeout,
            is_graced: false,
            on_time_at: now,
            early: 0,
            has_acknowledged: false,
            in_force: None,
            keeps: Vec::new(),
        }
    }

    /// Records that another interval is requested.
    pub(super) fn request(&mut self, every: Duration, now: Instant, timeout: Duration) {
        let least = self.shorter.map_or(self.every, |(shorter, _)| shorter.min(self.every));
        self.shorter = (least < every).then_some((least, now + GOT));
        (self.every, self.deadline) = (every, now + every + timeout);
    }

    /// Returns the interval that an agent with a message at this time has, or a shorter one. An agent that does not have
    /// a longer interval yet begins its share earlier.
    pub(super) fn least_interval(&mut self, now: Instant) -> Duration {
        self.shorter = self.shorter.filter(|(_, until)| now < *until);
        self.shorter.map_or(self.every, |(shorter, _)| shorter)
    }

    /// Records a message.
    pub(super) fn received(&mut self, message: &ToOperator, now: Instant, timeout: Duration) -> Received {
        // The answer to a push can arrive at any time, so it is never early. The number of questions depends on requests.
        let is_answer = matches!(message, ToOperator::Acknowledgement(_) | ToOperator::Rejection(_));
        let is_question = matches!(message, ToOperator::Questions(_) | ToOperator::LevelsSent(_));
        if !is_answer && !is_question {
            if now.duration_since(self.on_time_at) < self.every / 2 {
                self.early += 1;
            } else {
                (self.on_time_at, self.early) = (now, 0);
            }
            if self.early > MOST_EARLY {
                return Received::TooOften;
            }
        }
        if !matches!(message, ToOperator::Unknown(_)) {
            (self.deadline, self.is_graced) = (now + self.every + timeout, false);
        }
        Received::InTime
    }
}
