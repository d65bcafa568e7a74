//! What the engine remembers of a policy from one look at it to the next. Pure.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::RateLimitPolicyStatus;

use crate::compile::Compiled;
use crate::report::echo::Echo;
use crate::report::pace::Pace;
use crate::story::Story;

/// A policy that is followed.
#[derive(Debug)]
pub struct Followed {
    /// Its UID.
    pub uid: String,
    /// What there is to tell.
    pub story: Story,
    /// When its status is worth writing.
    pub pace: Pace,
    /// Whether its status is still there.
    pub echo: Echo,
}

impl Followed {
    /// Begins with the policy and the status of the moment when it is first seen.
    pub fn begin(
        now: Instant,
        policy: &Compiled,
        traffic_interval: Duration,
        found: Option<RateLimitPolicyStatus>,
    ) -> Self {
        Self {
            uid: policy.uid.clone(),
            story: Story::begin(now, policy.rules.clone(), found.as_ref()),
            echo: Echo::new(found.clone().map(Box::new)),
            pace: Pace::new(traffic_interval, found),
        }
    }

    /// Whether to write this status now, as which number: because it is new, or because somebody wrote over the last.
    pub fn writes(&mut self, now: Instant, status: &RateLimitPolicyStatus) -> Option<u64> {
        let is_due = self.pace.admits(now, status) || (self.echo.is_foreign(now) && self.pace.repeats(now, status));
        is_due.then(|| self.echo.send(now))
    }
}
