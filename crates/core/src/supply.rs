//! The arithmetic of every strategy, on plain numbers: no atomics and no decisions about concurrency here.
//!
//! A limiter is seen as a supply that only grows, measured in *units* (a request is a fixed number of units), and a
//! *level*: how far along the supply has been used up. `floor(now)` is what has flowed by and is lost if nobody took
//! it, `ceiling(now) = floor(now) + capacity` is what has been supplied so far. A charge lifts the level, first to the
//! floor if it lies below, then by its cost, and is admitted if it stays within the ceiling:
//!
//! ```text
//! level' = max(level, floor(now)) + cost      admitted when      level' <= ceiling(now)
//! ```
//!
//! The level is the whole state, one word, for every strategy; strategies differ only in how the floor grows. For
//! buckets it grows steadily: the level is then the theoretical arrival time of GCRA (ITU-T I.371), counted in units
//! of supply instead of nanoseconds. For windows it grows by `requests` at each boundary.
//!
//! Counting in units of supply makes costs whole numbers; it is time that is converted, from one base, with one
//! division rounded down. So errors never add up: where the emission interval is a whole number of nanoseconds the
//! arithmetic is exact, and where it is not (3 per second) a request comes less than two nanoseconds early, whatever
//! the run's length. A unit is as small as fits: 2^62 ns (146 years) of supply and one burst stay below 2^63, which
//! leaves the top bit to the limiter. With a burst that takes longer than 146 years to refill units get coarser, but
//! never coarser than the burst / 2^62.

use std::time::Duration;

use crate::{Quota, Strategy, Time};

/// How long a supply grows after its base: 146 years. Later it stands still.
const HORIZON: u64 = 1 << 62;

/// Levels stay below this.
const LEVELS: u64 = (1 << 63) - 2;

/// A level this far ahead of the clock cannot come from threads that read it in different order: the clock was set
/// back.
pub(crate) const SET_BACK: Duration = Duration::from_hours(24);

/// How a quota supplies its units, from a base in time on: `units` each `nanos`, steadily or a whole window's at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply {
    quota: Quota,
    units: u64,
    nanos: u64,
    /// Units of one request.
    unit: u64,
    /// For windows the start of one.
    base: Time,
}

impl Supply {
    pub(crate) fn new(quota: Quota, base: Time) -> Self {
        let (requests, period) = (quota.requests(), quota.period_nanos());
        match quota.strategy() {
            Strategy::FixedWindow => {
                let base = Time::from_nanos(base.as_nanos() - base.as_nanos() % period);
                Self { quota, units: requests, nanos: period, unit: 1, base }
            }
            Strategy::TokenBucket | Strategy::Gcra => {
                let unit = unit_of_bucket(quota);
                let divisor = gcd(requests * unit, period);
                Self { quota, units: requests * unit / divisor, nanos: period / divisor, unit, base }
            }
        }
    }

    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }

    /// Units of a whole burst.
    fn capacity(&self) -> u64 {
        self.quota.burst() * self.unit
    }

    /// What has flowed by until `now`.
    fn floor(&self, now: Time) -> u64 {
        let elapsed = now.as_nanos().saturating_sub(self.base.as_nanos()).min(HORIZON);
        match self.quota.strategy() {
            Strategy::FixedWindow => elapsed / self.nanos * self.units,
            Strategy::TokenBucket | Strategy::Gcra if self.nanos == 1 => elapsed * self.units,
            Strategy::TokenBucket | Strategy::Gcra => {
                narrow(u128::from(elapsed) * u128::from(self.units) / u128::from(self.nanos))
            }
        }
    }

    /// What has been supplied until `now`.
    fn ceiling(&self, now: Time) -> u64 {
        self.floor(now) + self.capacity()
    }

    /// The first moment at which the floor reaches `level`.
    fn reached(&self, level: u64) -> Time {
        let elapsed = match self.quota.strategy() {
            Strategy::FixedWindow => level.div_ceil(self.units).saturating_mul(self.nanos),
            Strategy::TokenBucket | Strategy::Gcra => {
                narrow((u128::from(level) * u128::from(self.nanos)).div_ceil(u128::from(self.units)))
            }
        };
        Time::from_nanos(self.base.as_nanos().saturating_add(elapsed))
    }

    /// The level after a charge, or none if it is refused.
    pub(crate) fn charge(&self, level: u64, now: Time, cost: u64) -> Option<u64> {
        let floor = self.floor(now);
        let after = level.max(floor).checked_add(cost.checked_mul(self.unit)?)?;
        (after <= floor + self.capacity()).then_some(after)
    }

    /// The level after giving back a charge of `cost` made at `charged_at`.
    ///
    /// What has flowed in since then is not given back: it may have been lost on a bucket that was full only because
    /// of this charge, or taken by others. So a charge given back at once leaves no trace, in a window at any time
    /// within it, and none ever gives more than was not yet refilled. For this `now` must not be earlier than any time
    /// that went into `level`.
    pub(crate) fn refund(&self, level: u64, charged_at: Time, now: Time, cost: u64) -> u64 {
        let Some(refilled) = self.floor(now).checked_sub(self.floor(charged_at)) else {
            return level;
        };
        level.saturating_sub(cost.saturating_mul(self.unit).saturating_sub(refilled))
    }

    /// The level to go on with if `level` is so far ahead that the clock must have been set back: all used up, and
    /// refilled from now on. Otherwise none.
    pub(crate) fn after_set_back(&self, level: u64, now: Time) -> Option<u64> {
        (level > self.ceiling(now.saturating_add(SET_BACK))).then(|| self.ceiling(now))
    }

    /// The level with all of the burst free at `now` and no sooner.
    pub(crate) fn idle_at(&self, now: Time) -> u64 {
        self.floor(now)
    }

    /// Whether all of the burst is free, so that forgetting `level` refills nothing early.
    pub(crate) fn is_idle(&self, level: u64, now: Time) -> bool {
        level <= self.floor(now)
    }

    /// The level in this supply for what `level` was in `old`, if this one took over at `since`.
    ///
    /// What is free afterwards is at most what was free before, in requests and as a share of the burst: a change gives
    /// nobody anything, and from then on the new rate refills. The result depends on the arguments alone, so that all
    /// threads that compute it agree.
    pub(crate) fn carry_over(&self, old: &Supply, level: u64, since: Time) -> u64 {
        // If a clock was read out of order the level can lie above the old ceiling: this supply then takes over when
        // the old one had supplied as much. (Unless the clock was set back, for then that may be years ahead.)
        let used_up = old.reached(level.saturating_sub(old.capacity()));
        let since = if used_up <= since.saturating_add(SET_BACK) { since.max(used_up) } else { since };
        let free = u128::from(old.ceiling(since).saturating_sub(level.max(old.floor(since))));
        let kept = if self.quota.burst() < old.quota.burst() {
            free * u128::from(self.quota.burst()) / u128::from(old.quota.burst())
        } else {
            free
        };
        let free = narrow(kept * u128::from(self.unit) / u128::from(old.unit));
        self.ceiling(since) - free.min(self.capacity())
    }

    /// Whole requests that could be charged at once.
    pub(crate) fn remaining(&self, level: u64, now: Time) -> u64 {
        let floor = self.floor(now);
        (floor + self.capacity()).saturating_sub(level.max(floor)) / self.unit
    }

    /// How long until all of the burst is free.
    pub(crate) fn reset_after(&self, level: u64, now: Time) -> Duration {
        self.reached(level).duration_since(now)
    }

    /// How long until `cost` would be admitted; none if it exceeds the burst.
    pub(crate) fn retry_after(&self, level: u64, now: Time, cost: u64) -> Option<Duration> {
        if cost > self.quota.burst() {
            return None;
        }
        let after = level.max(self.floor(now)).saturating_add(cost * self.unit);
        Some(self.reached(after.saturating_sub(self.capacity())).duration_since(now))
    }
}

/// Units of one request: as many as fit; a multiple that makes the flow a whole number of units per nanosecond if one
/// fits.
fn unit_of_bucket(quota: Quota) -> u64 {
    let (requests, period) = (quota.requests(), quota.period_nanos());
    let supplied = (u128::from(requests) << 62).div_ceil(u128::from(period)) + u128::from(quota.burst());
    let most = narrow(u128::from(LEVELS) / supplied);
    let whole = period / gcd(requests, period);
    if whole <= most { most - most % whole } else { most }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
