//! What the engine remembers of a policy from one look at it to the next. Pure.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::RateLimitPolicyStatus;

use crate::compile::Compiled;
use crate::report::Stored;
use crate::report::echo::Echo;
use crate::report::pace::Pace;
use crate::story::Story;
use crate::world::Beside;

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
    /// Its version, as last shown or stored.
    pub version: Option<String>,
}

impl Followed {
    /// Begins with the policy and what is found beside it when this operator starts to look after it.
    pub fn begin(now: Instant, policy: &Compiled, traffic_interval: Duration, found: Beside) -> Self {
        let Beside { status, version } = found;
        let found = status.map(|status| *status);
        Self {
            uid: policy.uid.clone(),
            story: Story::begin(now, policy.rules.clone(), found.as_ref()),
            echo: Echo::new(found.clone().map(Box::new)),
            pace: Pace::new(traffic_interval, found),
            version,
        }
    }

    /// Its source shows this beside it.
    pub fn shown(&mut self, now: Instant, beside: Beside) {
        self.version = beside.version;
        self.echo.shown(now, beside.status);
    }

    /// A write has landed.
    pub fn landed(&mut self, now: Instant, number: u64, stored: Stored) {
        self.version = stored.version;
        self.echo.landed(now, number, stored.status);
    }

    /// What the next to look after it begins with.
    pub fn leave(self) -> Beside {
        Beside { status: self.pace.into_written().map(Box::new), version: self.version }
    }

    /// Whether to write this status now, as which number: because it is new, or because somebody wrote over the last.
    pub fn writes(&mut self, now: Instant, status: &RateLimitPolicyStatus) -> Option<u64> {
        let is_due = self.pace.admits(now, status) || (self.echo.is_foreign(now) && self.pace.repeats(now, status));
        is_due.then(|| self.echo.send(now))
    }
}
