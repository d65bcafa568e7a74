//! The verdict on a request: pass, wait or refuse.

use std::{sync::Arc, time::Duration};

use super::{deferred::DeferredCost, fields::Fields, refusal::Refusal, rule::Rule, wait::Wait};

/// What the rules decide on a request.
#[derive(Debug)]
pub enum Verdict<'r> {
    /// It may go now.
    Pass(Pass),
    /// It may go at its turn.
    Wait(Box<Wait>),
    /// It must not reach the app.
    Refuse(Refusal<'r>),
}

/// A request that may go.
#[derive(Debug, Default)]
pub struct Pass {
    /// The fields that tell the client about its quota.
    pub fields: Fields,
    /// `None` for most requests, which need no follow-up.
    pub follow_up: Option<Box<FollowUp>>,
}

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
}

impl Verdict<'_> {
    /// Adds the costs of a policy in shadow mode, which does not affect the verdict.
    pub(super) fn add(&mut self, costs: Vec<DeferredCost>) {
        match self {
            Self::Pass(pass) if !costs.is_empty() => pass.follow_up.get_or_insert_default().costs.extend(costs),
            Self::Wait(wait) => wait.follow_up.costs.extend(costs),
            Self::Pass(_) | Self::Refuse(_) => {}
        }
    }
}

impl Deadline {
    /// Counts that the deadline passed before the app answered.
    pub fn expire(&self) {
        self.rule.counters.count_expired();
    }
}

impl FollowUp {
    /// `None` if nothing remains to do.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let nothing = self.deadline.is_none() && self.costs.is_empty();
        (!nothing).then(|| Box::new(self))
    }
}
