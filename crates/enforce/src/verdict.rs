//! What comes of a request: it goes, it waits, or it is refused.

use std::{sync::Arc, time::Duration};

use super::{deferred::DeferredCost, fields::Fields, in_force::Rule, refusal::Refusal, wait::Wait};

/// What the rules say about a request.
#[derive(Debug)]
pub enum Verdict<'r> {
    /// It goes now.
    Pass(Pass),
    /// It goes at its turn.
    Wait(Box<Wait>),
    /// It must not reach the app.
    Refuse(Refusal<'r>),
}

/// A request that goes.
#[derive(Debug, Default)]
pub struct Pass {
    /// What its response tells the client about the quota.
    pub fields: Fields,
    /// None for most: nothing is to be done any more.
    pub follow_up: Option<Box<FollowUp>>,
}

/// What is still to be done for a request that was let through.
#[derive(Debug, Default)]
pub struct FollowUp {
    /// How long it may take.
    pub deadline: Option<Deadline>,
    /// Costs that the response tells.
    pub costs: Vec<DeferredCost>,
}

/// How long a request may take from the verdict on, its wait included.
#[derive(Debug)]
pub struct Deadline {
    /// The whole of it.
    pub after: Duration,
    /// Where it counts if it passes: of the policies about the request the one with the shortest says so, and of its rules the
    /// first.
    pub(super) rule: Arc<Rule>,
}

impl Verdict<'_> {
    /// Costs of a policy in shadow mode, which has no say whether the request goes.
    pub(super) fn add(&mut self, costs: Vec<DeferredCost>) {
        match self {
            Self::Pass(pass) if !costs.is_empty() => pass.follow_up.get_or_insert_default().costs.extend(costs),
            Self::Wait(wait) => wait.follow_up.costs.extend(costs),
            Self::Pass(_) | Self::Refuse(_) => {}
        }
    }
}

impl Deadline {
    /// Counts that it passed before the app had answered.
    pub fn expire(&self) {
        self.rule.counters.count_expired();
    }
}

impl FollowUp {
    /// None if there is nothing to do.
    pub(super) fn boxed(self) -> Option<Box<Self>> {
        let nothing = self.deadline.is_none() && self.costs.is_empty();
        (!nothing).then(|| Box::new(self))
    }
}
