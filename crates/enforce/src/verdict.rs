//! The verdict on a request: pass, wait or refuse.

use super::{deferred::DeferredCost, fields::Fields, follow_up::FollowUp, refusal::Refusal, wait::Wait};

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
