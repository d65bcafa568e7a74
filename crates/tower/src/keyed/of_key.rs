//! One key of a rule as a limit with a queue.

use std::time::Duration;

use weir_core::{Quota, RuleLimiter, RuleRefused, Ticket, Tightest, Time};

use crate::{AtHead, MonotonicClock, waiting::Enqueue};

/// A rule for a request with one key and one cost.
pub(super) struct OfKey<'a> {
    pub(super) rule: &'a RuleLimiter,
    pub(super) clock: MonotonicClock,
    pub(super) key: &'a [u8],
    pub(super) cost: u64,
}

impl AtHead for OfKey<'_> {
    type Pass = Tightest;
    type Refusal = RuleRefused;

    fn charge(&self, _: Time) -> Result<Tightest, RuleRefused> {
        Ok(self.rule.charge(|| self.clock.now(), self.key, self.cost)?.tightest)
    }

    fn late(&self, now: Time) -> RuleRefused {
        self.enqueue(now, Some(Time::default())).expect_err("no turn comes before now")
    }

    fn retry_after(refused: &RuleRefused) -> Option<Duration> {
        refused.retry_after()
    }

    fn quota(refused: &RuleRefused) -> Quota {
        refused.standing.quota()
    }
}

impl Enqueue for OfKey<'_> {
    fn queue_len(&self) -> usize {
        if self.cost == 0 { 0 } else { self.rule.queue_len(self.key) }
    }

    fn enqueue(&self, now: Time, latest: Option<Time>) -> Result<Ticket, RuleRefused> {
        self.rule.enqueue(now, self.key, self.cost, latest)
    }
}
