//! What remains to do for a request after its verdict.

use std::{sync::Arc, time::Duration};

use super::{deferred::DeferredCost, format::Format, rule::Rule};

/// What remains to do for an admitted request.
#[derive(Debug, Default)]
pub struct FollowUp {
    /// The deadline of the request.
    pub deadline: Option<Deadline>,
    /// Costs that depend on the response.
    pub costs: Vec<DeferredCost>,
}

/// How long a request may take, from the verdict on and including its wait.
#[derive(Debug)]
pub struct Deadline {
    /// The total time.
    pub after: Duration,
    /// The rule that counts an expiry. The deadline comes from the matching policy with the shortest one; of its rules,
    /// the first counts.
    pub(super) rule: Arc<Rule>,
    /// The format of the response when it has passed.
    pub(super) format: Format,
}

impl Deadline {
    /// Counts that the deadline passed before the app answered.
    pub(super) fn expire(&self) {
        self.rule.counters.count_expired();
    }
}

impl FollowUp {
    /// The deadline, if it has one that was not taken before.
    pub(super) fn take_deadline(&mut self) -> Option<(Duration, Deadline)> {
        self.deadline.take().map(|deadline| (deadline.after, deadline))
    }

    /// `None` if nothing remains to do.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let nothing = self.deadline.is_none() && self.costs.is_empty();
        (!nothing).then(|| Box::new(self))
    }
}
