//! The numbers that a caller derives from a level: the remaining requests, and the time until there are more. This
//! module makes no decisions.

use std::time::Duration;

use super::{at_once, time_of};
use crate::{Quota, Strategy};

/// A level and the floor at one time. Together with the quota, they determine the remaining requests and the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelAt {
    unit: u64,
    /// The time since the base. Negative before the base.
    elapsed: i64,
    level: u64,
    floor: u64,
}

impl LevelAt {
    #[inline]
    pub(super) fn new(unit: u64, elapsed: i64, level: u64, floor: u64) -> Self {
        Self { unit, elapsed, level, floor }
    }

    /// Returns the number of whole requests that could be charged at the same time.
    pub(crate) fn remaining(&self, quota: &Quota) -> u64 {
        let capacity = at_once(quota) * self.unit;
        (self.floor + capacity).saturating_sub(self.level.max(self.floor)) / self.unit
    }

    /// Returns the time until the whole burst is free.
    pub(crate) fn reset_after(&self, quota: &Quota) -> Duration {
        self.wait(quota, self.level)
    }

    /// Returns the time until `cost` would be admitted. None if it is never admitted.
    pub(crate) fn retry_after(&self, quota: &Quota, cost: u64) -> Option<Duration> {
        if cost > quota.most() {
            return None;
        }
        let before = self.level.max(self.floor);
        let due = match quota.strategy() {
            Strategy::LeakyBucket => before,
            _ => before.saturating_add(cost * self.unit).saturating_sub(quota.most() * self.unit),
        };
        Some(self.wait(quota, due))
    }

    /// Returns the time until the floor reaches a level.
    fn wait(&self, quota: &Quota, level: u64) -> Duration {
        if level <= self.floor {
            return Duration::ZERO;
        }
        let reached = match quota.strategy() {
            Strategy::FixedWindow => level.div_ceil(quota.period_nanos()).saturating_mul(quota.period_nanos()),
            _ => time_of(level, quota.requests() * self.unit, quota.period_nanos()),
        };
        Duration::from_nanos(reached.saturating_add_signed(self.elapsed.saturating_neg()))
    }
}
