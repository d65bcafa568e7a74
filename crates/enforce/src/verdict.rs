//! The verdict on a request: pass, wait or refuse.

use std::mem;

use super::{
    deferred::DeferredCost,
    fields::Fields,
    follow_up::{AdmittedBy, Deadline, FollowUp, HeldPermit},
    refusal::Refusal,
    wait::Wait,
};

/// The decision of the rules on a request.
#[derive(Debug)]
pub enum Verdict<'r> {
    /// The request is admitted now.
    Pass(Pass),
    /// The request is admitted when its turn comes.
    Wait(Box<Wait>),
    /// The request must not reach the app.
    Refuse(Refusal<'r>),
}

/// An admitted request.
#[derive(Debug, Default)]
pub struct Pass {
    /// The response headers that describe the client's quota.
    pub fields: Fields,
    /// The remaining work. Most requests have none.
    pub follow_up: Option<Box<FollowUp>>,
}

impl Pass {
    /// A request whose turn it is. Counts the permits that it holds, and adds the fields of their rules.
    pub(super) fn new(mut fields: Fields, mut follow_up: FollowUp) -> Self {
        for AdmittedBy { rule, state, override_index } in follow_up.take_admitted() {
            rule.counters.count_allowed();
            if let Some(advice) = rule.advice() {
                fields.add_concurrency(advice, state, override_index);
            }
        }
        Self { fields, follow_up: follow_up.boxed() }
    }
}

impl Verdict<'_> {
    /// Adds the costs and the permits of a policy in shadow mode, which does not affect the verdict.
    pub(super) fn add(&mut self, costs: Vec<DeferredCost>, permits: Vec<HeldPermit>) {
        let follow_up = match self {
            Self::Pass(pass) if !(costs.is_empty() && permits.is_empty()) => {
                &mut **pass.follow_up.get_or_insert_default()
            }
            Self::Wait(wait) => &mut wait.follow_up,
            Self::Pass(_) | Self::Refuse(_) => return,
        };
        follow_up.costs.extend(costs);
        follow_up.permits.extend(permits);
    }

    /// Adds the permits of rules that enforce, and the deadline of their policies.
    pub(super) fn hold(&mut self, permits: Vec<HeldPermit>, deadline: Option<Deadline>) {
        match self {
            Self::Pass(pass) => {
                let Pass { fields, follow_up } = mem::take(pass);
                let mut follow_up = follow_up.map(|follow_up| *follow_up).unwrap_or_default();
                follow_up.hold(permits, deadline);
                *pass = Pass::new(fields, follow_up);
            }
            Self::Wait(wait) => wait.follow_up.hold(permits, deadline),
            Self::Refuse(_) => {}
        }
    }
}
