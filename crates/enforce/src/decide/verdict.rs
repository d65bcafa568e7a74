//! The verdict on a request: pass, wait or refuse.

use crate::{
    decide::{
        deferred::DeferredCost,
        follow_up::{FollowUp, HeldPermit},
        refusal::Refusal,
        wait::Wait,
    },
    quota_headers::Fields,
};

/// The decision of the rules on a request.
#[derive(Debug)]
#[non_exhaustive]
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
    /// Adds the costs and the permits of rules in shadow mode, which do not affect the verdict.
    pub(crate) fn add(&mut self, costs: Vec<DeferredCost>, permits: Vec<HeldPermit>) {
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

    /// Adds the permits of rules that enforce. If the request passes now, it also counts as allowed for these rules.
    pub(crate) fn keep_permits(&mut self, permits: Vec<HeldPermit>) {
        match self {
            Self::Pass(Pass { fields, follow_up }) => {
                let follow_up = follow_up.get_or_insert_default();
                follow_up.permits = permits;
                follow_up.admit(fields);
            }
            Self::Wait(wait) => wait.follow_up.permits = permits,
            Self::Refuse(_) => {}
        }
    }
}
