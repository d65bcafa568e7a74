//! The remaining work for a request after its verdict.

use std::{sync::Arc, time::Duration};

use super::{deferred::DeferredCost, format::Format, rule::Rule};

/// The remaining work for an admitted request.
#[derive(Debug, Default)]
pub struct FollowUp {
    /// The deadline of the request.
    pub deadline: Option<Deadline>,
    /// Costs that depend on the response.
    pub costs: Vec<DeferredCost>,
}

/// The maximum time of a request after its verdict, including its wait.
#[derive(Debug)]
pub struct Deadline {
    /// The maximum time of the request.
    pub after: Duration,
    /// The rule that counts an exceeded deadline: the first matching rule of the policy with the shortest deadline.
    pub(super) rule: Arc<Rule>,
    /// The format of the response to a request that exceeds the deadline.
    pub(super) format: Format,
}

impl Deadline {
    /// Counts a request whose deadline passed before the app answered.
    pub(super) fn expire(&self) {
        self.rule.counters.count_expired();
    }
}

impl FollowUp {
    /// Takes the deadline, if there is one.
    pub(super) fn take_deadline(&mut self) -> Option<(Duration, Deadline)> {
        self.deadline.take().map(|deadline| (deadline.after, deadline))
    }

    /// Returns the work in a box, or `None` if no work remains.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let nothing = self.deadline.is_none() && self.costs.is_empty();
        (!nothing).then(|| Box::new(self))
    }
}
