//! Where a limiter stood when it was asked. Numbers are worked out only when somebody wants them.

use std::time::Duration;

use crate::supply::Supply;
use crate::{Quota, Time};

/// What a limiter had left at the moment of a decision: a snapshot that does not change any more.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time};
///
/// let now = Time::from_nanos(0);
/// let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?);
/// let standing = limiter.check(now, 4)?.standing;
/// assert_eq!(standing.remaining(), 6);
/// assert_eq!(standing.reset_after(), Duration::from_millis(400));
/// assert_eq!(standing.retry_after(7), Some(Duration::from_millis(100)));
/// assert_eq!(standing.retry_after(11), None); // never: more than the burst
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    supply: Supply,
    level: u64,
    now: Time,
}

impl Standing {
    pub(crate) fn new(supply: Supply, level: u64, now: Time) -> Self {
        Self { supply, level, now }
    }

    /// The quota that was in force.
    pub fn quota(&self) -> Quota {
        self.supply.quota()
    }

    /// How many requests could still be admitted at once, in whole requests.
    pub fn remaining(&self) -> u64 {
        self.supply.remaining(self.level, self.now)
    }

    /// How long until all of the burst is free again, if nothing else is admitted; for a window, until it ends.
    pub fn reset_after(&self) -> Duration {
        self.supply.reset_after(self.level, self.now)
    }

    /// How long until a request of this cost would be admitted, if nothing else is: zero if it would be now, none if
    /// it exceeds the burst and so never will be. Rounded up: a client that waits this long is admitted.
    pub fn retry_after(&self, cost: u64) -> Option<Duration> {
        self.supply.retry_after(self.level, self.now, cost)
    }
}
