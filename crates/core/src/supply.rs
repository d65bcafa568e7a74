//! The arithmetic of fixed windows and buckets, on plain numbers: no atomics, no concurrency.
//!
//! A limit has a *supply*, which only grows, and a *level*, which is the used part of the supply. Both are measured in
//! *units*. A request is a fixed number of units. `floor(now)` is the part of the supply that has expired: unused units
//! below the floor are lost. `ceiling(now) = floor(now) + capacity` is the whole supply until now. A charge raises a
//! level below the floor to the floor, and then adds its cost. The charge is admitted if the level stays within the
//! ceiling:
//! ```text
//! level' = max(level, floor(now)) + cost      admitted when      level' <= ceiling(now)
//! ```
//!
//! The level is the whole state of each of these strategies, in one word. The strategies differ only in how the floor
//! grows. For buckets, the floor grows steadily, and the level is the theoretical arrival time of GCRA (ITU-T I.371) in
//! units of supply instead of nanoseconds. For windows, the floor grows at each boundary, by the number of nanoseconds
//! in a period. This number is never less than `requests`, so a level encodes the start of a window and a count, even a
//! count above a lowered limit. A leaky bucket uses the same levels, but admits a request only when the floor has
//! reached all earlier charges.
//!
//! Units are numbered: an admitted request takes free units between the floor and the ceiling. In any span of time,
//! requests take at most the burst plus the units that flow in during this span, in any order of the units. So a thread
//! can keep units for later requests (see `lease`), and a *reservation* is a charge of units beyond the current
//! ceiling.
//!
//! Costs are whole numbers of units. Only time is converted to units, from one base, by one exact division that rounds
//! down. So errors never add up. If the emission interval is a whole number of nanoseconds and a burst refills within
//! 146 years, the arithmetic is exact. Otherwise, for example with 3 requests per second, a request is admitted less
//! than two nanoseconds early, and the error does not grow. Units are as small as possible: 2^62 ns (146 years) of
//! supply and one burst stay below 2^63, so the top bit is free for the seal. If a burst takes longer than 146 years to
//! refill, units are larger, but never larger than burst / 2^62.

mod fast;
mod level_at;
mod retune;

use std::time::Duration;

pub(crate) use self::{level_at::LevelAt, retune::Tokens};
use crate::{Quota, Strategy, Time, quota::EVERYTHING};

/// The time for which a supply grows after its base: 146 years. After this time it does not change.
const HORIZON: u64 = 1 << 62;

/// Half of the horizon. Until this time the floor is below 2^62, because less than two units flow in per nanosecond.
const DIRECT: u64 = HORIZON / 2;

/// The least distance of a sealed level from a floor below 2^62, because sealed levels are 2^63 and more.
const NEVER_SEALED: u64 = 1 << 62;

/// All levels are below this number.
const LEVELS: u64 = (1 << 63) - 2;

/// The longest wait of a reservation.
pub(crate) const MAX_AHEAD: Duration = Duration::from_hours(12);

/// [`SET_BACK`](crate::time::SET_BACK) in nanoseconds.
const DAY: u64 = 86_400_000_000_000;

/// The time from the base to the first clock reading: 36 years. No supply flows in before the base. So a clock that was
/// ahead at first can be set back by this time. `BEHIND` is half of [`DIRECT`]. The other half is the future.
pub(crate) const BEHIND: u64 = DIRECT / 2;

/// The supply of a quota from a base time on. Every `nanos`, `flow` portions of `each` units flow in. A bucket supplies
/// single units (`each` is 1). A window supplies all its units together (`flow` is 1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply {
    quota: Quota,
    flow: u64,
    each: u64,
    nanos: u64,
    /// Whether one unit flows in per nanosecond, so that a level is a time in nanoseconds. True for most quotas.
    is_time: bool,
    /// `flow / nanos`, which is less than two, in multiples of 2^-63, rounded down.
    per_nano: u64,
    /// The units of one request.
    unit: u64,
    /// Requests per unit, in multiples of 2^-64. This number is always below the exact value, even if the exact value
    /// is a whole number.
    per_unit: u64,
    /// Units between floor and ceiling, which is the largest admission.
    capacity: u64,
    /// The capacity minus the units of one request.
    spare: u64,
    /// Units of one day plus the most expensive request. A level is further above the floor only if the clock was set
    /// back.
    day: u64,
    /// The time at which the supply starts. For windows, the start of a window.
    base: Time,
    /// See [`Supply::direct`].
    direct: u64,
}

impl Supply {
    /// Returns a supply with a free burst at `now` and before.
    pub(crate) fn new(quota: Quota, now: Time) -> Self {
        let (requests, period) = (quota.requests(), quota.period_nanos());
        let (now, behind) = (now.as_nanos(), now.as_nanos().min(BEHIND));
        let (unit, flow, each, nanos, capacity, base) = if quota.strategy() == Strategy::FixedWindow {
            let base = now - behind;
            (1, 1, period, period, quota.burst(), base - base % period)
        } else {
            let unit = unit_of_bucket(quota);
            let divisor = gcd(requests * unit, period);
            let nanos = period / divisor;
            // The base is a whole number of steps before the first reading, so that the next step comes `nanos` after
            // that reading and not earlier.
            (unit, requests * unit / divisor, 1, nanos, at_once(&quota) * unit, now - behind / nanos * nanos)
        };
        let base = Time::from_nanos(base);
        let per_nano = narrow((u128::from(flow) << 63) / u128::from(nanos));
        let supplied = narrow((u128::from(per_nano) * u128::from(DAY)) >> 63);
        let (is_time, spare) = ((flow, each, nanos) == (1, 1, 1), capacity - unit);
        let day = if quota.strategy() == Strategy::FixedWindow {
            // The level of a full window that starts within a day. One more request would belong to a later window.
            (DAY.div_ceil(period) + 1).saturating_mul(each)
        } else {
            (supplied + 2).saturating_add(quota.most().saturating_mul(unit))
        };
        let per_unit = u64::MAX / unit;
        let direct = if day <= NEVER_SEALED { DIRECT } else { 0 };
        Self { quota, flow, each, nanos, is_time, per_nano, unit, per_unit, capacity, spare, day, base, direct }
    }

    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the units of one request.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// Returns the number of whole requests in these units, or one less. Exact if `(units + 1) * unit` is less than
    /// 2^64.
    #[inline(always)]
    pub(crate) fn whole_or_less(&self, units: u64) -> u64 {
        // The reciprocal is too small by at most 2^-64, and never exact, so one unit more never adds a request.
        narrow((u128::from(units + 1) * u128::from(self.per_unit)) >> 64)
    }

    /// Returns the number of units that flow in together.
    pub(crate) fn each(&self) -> u64 {
        self.each
    }

    /// Returns the number of units between floor and ceiling.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns true if requests can take units in any order. False if each request must wait for all earlier charges.
    pub(crate) fn supports_leases(&self) -> bool {
        !self.is_leaky_bucket()
    }

    pub(crate) fn is_window(&self) -> bool {
        self.quota.strategy() == Strategy::FixedWindow
    }

    fn is_leaky_bucket(&self) -> bool {
        self.quota.strategy() == Strategy::LeakyBucket
    }

    /// Returns the floor at `now`.
    #[inline]
    pub(crate) fn floor(&self, now: Time) -> u64 {
        let elapsed = match now.as_nanos().checked_sub(self.base.as_nanos()) {
            Some(elapsed) if elapsed <= HORIZON => elapsed,
            _ => self.beyond_horizon(now),
        };
        self.flowed(elapsed)
    }

    /// Returns the floor this many nanoseconds after the base, up to [`HORIZON`].
    #[inline(always)]
    pub(crate) fn flowed(&self, elapsed: u64) -> u64 {
        if self.is_time {
            return elapsed;
        }
        // The error of the reciprocal is less than one in the product: the quotient is exact or one too small.
        let (_, quotient) = (2 * elapsed).carrying_mul(self.per_nano, 0);
        let rest = elapsed.wrapping_mul(self.flow).wrapping_sub(quotient.wrapping_mul(self.nanos));
        (quotient + u64::from(rest >= self.nanos)) * self.each
    }

    /// The elapsed time for a time before the base or beyond the horizon.
    #[cold]
    fn beyond_horizon(&self, now: Time) -> u64 {
        if now < self.base { 0 } else { HORIZON }
    }

    /// Returns the ceiling at `now`.
    pub(crate) fn ceiling(&self, now: Time) -> u64 {
        self.floor(now) + self.capacity
    }

    /// Returns the first time at which the floor reaches `level`.
    fn reached(&self, level: u64) -> Time {
        let elapsed = if self.is_window() {
            level.div_ceil(self.each).saturating_mul(self.nanos)
        } else {
            time_of(level, self.flow, self.nanos)
        };
        Time::from_nanos(self.base.as_nanos().saturating_add(elapsed))
    }

    /// Returns the last time at which the floor is not above `level`.
    pub(crate) fn last_at(&self, level: u64) -> Time {
        self.reached(level.saturating_add(1)).saturating_sub(Duration::from_nanos(1))
    }

    /// Returns the new level if a charge of `cost` is admitted when the floor is `floor`, and `None` if it is refused.
    /// A cost of 0 is never refused.
    #[inline]
    pub(crate) fn charge(&self, level: u64, floor: u64, cost: u64) -> Option<u64> {
        let after = level.max(floor).checked_add(cost.checked_mul(self.unit)?)?;
        let within = after <= floor + self.capacity
            || self.is_leaky_bucket() && level <= floor && cost <= self.quota.most()
            || cost == 0;
        within.then_some(after)
    }

    /// Returns the level after a charge that can wait, and the time at which the request is admitted. None if the cost
    /// is too large at any time, if the time would be after `latest`, or if the queue is full.
    pub(crate) fn reserve(&self, level: u64, now: Time, cost: u64, latest: Time) -> Option<(u64, Time)> {
        let (floor, most) = (self.floor(now), self.quota.most());
        let mut before = level.max(floor);
        if cost == 0 {
            return Some((before, now));
        }
        if cost > most {
            return None;
        }
        if self.is_window() && before % self.each + cost > most {
            // All units of a request must be in one window.
            before = before.next_multiple_of(self.each);
        }
        let after = before.checked_add(cost.checked_mul(self.unit)?)?;
        if self.is_leaky_bucket() && after - floor > most * self.unit {
            return None;
        }
        let due = if self.is_leaky_bucket() { before } else { after.saturating_sub(self.capacity) };
        let at = if due <= floor { now } else { self.reached(due).max(now) };
        (at <= latest.min(now.saturating_add(MAX_AHEAD)) && after < LEVELS).then_some((after, at))
    }

    /// Returns the level after a cost that was already incurred, and the part of the cost that is charged. A bucket is
    /// charged as far ahead as by reservations, and a window or a leaky bucket until it is full.
    pub(crate) fn incur(&self, level: u64, now: Time, cost: u64) -> (u64, u64) {
        let before = level.max(self.floor(now));
        let most = match self.quota.strategy() {
            Strategy::FixedWindow => before - before % self.each + self.quota.most(),
            Strategy::LeakyBucket => self.floor(now) + self.quota.most() * self.unit,
            _ => self.ceiling(now.saturating_add(MAX_AHEAD)),
        };
        let charged = cost.min(most.min(LEVELS - 1).saturating_sub(before) / self.unit);
        (before + charged * self.unit, charged)
    }

    /// Returns the level after charging a sum of costs, even beyond the limit.
    pub(crate) fn add(&self, level: u64, now: Time, cost: u64) -> u64 {
        level.max(self.floor(now)).saturating_add(cost.saturating_mul(self.unit)).min(LEVELS)
    }

    /// Returns true if this cost exceeds a leaky bucket, which has room for one admitted request and a burst of waiting
    /// requests.
    pub(crate) fn overflows(&self, level: u64, now: Time, cost: u64) -> bool {
        let floor = self.floor(now);
        let after = level.max(floor).saturating_add(cost.saturating_mul(self.unit));
        cost > 0 && self.is_leaky_bucket() && after - floor > self.quota.most() * self.unit
    }

    /// Returns the level after giving back a charge of `cost` made at `charged_at`, which raised the level to `mark`.
    ///
    /// Units that have flowed in since the charge are not given back: the bucket has refilled them, or other requests
    /// have used them. So a charge that is given back immediately leaves no trace. In a window, this is true until the
    /// window ends. A refund never gives back more than the bucket still has to refill. For this, `now` must not be
    /// earlier than any time in `level`. Later reservations, beyond the ceiling, keep their times. A bucket gives back
    /// the units that these reservations do not need. A window or a leaky bucket cannot move a part of a cost, so it
    /// gives back only the last reservation.
    pub(crate) fn refund(&self, level: u64, charged_at: Time, now: Time, cost: u64, mark: u64) -> u64 {
        let mut units = cost.saturating_mul(self.unit);
        let lost = if level > self.ceiling(now) {
            if level != mark && (self.is_window() || self.is_leaky_bucket()) {
                return level;
            }
            units = units.min(mark.saturating_sub(self.floor(now)));
            self.between(mark, level)
        } else {
            let Some(refilled) = self.floor(now).checked_sub(self.floor(charged_at)) else {
                return level;
            };
            refilled
        };
        level.saturating_sub(units.saturating_sub(lost))
    }

    /// Returns the level after giving back units of the newest charges. If a later window has reservations, the level
    /// does not say which units of the current window were used, and all of them are lost.
    pub(crate) fn credit(&self, level: u64, now: Time, cost: u64) -> u64 {
        if self.is_window() && level > self.floor(now) + self.each {
            return level;
        }
        // A debt can be more than all units of the limit.
        if cost == EVERYTHING {
            return level.min(self.floor(now));
        }
        // A limit cannot get back more than its full credit.
        self.refund(level, now, now, cost.min(self.quota.most()), level)
    }

    /// Returns true if `level` is so far ahead that the clock must have been set back. Then the limit is used up, and
    /// refills from now on.
    #[inline]
    pub(crate) fn is_set_back(&self, level: u64, floor: u64) -> bool {
        level > floor.saturating_add(self.day)
    }

    /// Returns true if the whole burst is free, so that forgetting `level` gives no early tokens.
    pub(crate) fn is_idle(&self, level: u64, now: Time) -> bool {
        level <= self.floor(now)
    }

    /// Returns the number of the window of a level, and the count in it.
    pub(crate) fn window_of(&self, level: u64) -> (u64, u64) {
        (level / self.each, level % self.each)
    }

    /// Returns the units between two levels, without the gaps that no request can have used.
    fn between(&self, low: u64, high: u64) -> u64 {
        if !self.is_window() {
            return high.saturating_sub(low);
        }
        let ((first, before), (last, count)) = (self.window_of(low), self.window_of(high));
        match last.checked_sub(first) {
            None => 0,
            Some(0) => count.saturating_sub(before),
            Some(windows) => windows.saturating_mul(self.capacity).saturating_add(count).saturating_sub(before),
        }
    }

    /// Returns the numbers of a level for the caller, at `now` and this floor.
    #[inline]
    pub(crate) fn level_at(&self, level: u64, floor: u64, now: Time) -> LevelAt {
        LevelAt::new(self.unit, self.elapsed(now).cast_signed(), level, floor)
    }
}

/// The number of requests that can be admitted at the same time.
pub(crate) fn at_once(quota: &Quota) -> u64 {
    if quota.strategy() == Strategy::LeakyBucket { 1 } else { quota.most() }
}

/// Returns the time until a supply of `units` per `nanos` reaches `level`, rounded up.
fn time_of(level: u64, units: u64, nanos: u64) -> u64 {
    // This is true for most quotas, and saves a division of 128 bits.
    if units == nanos {
        return level;
    }
    narrow((u128::from(level) * u128::from(nanos)).div_ceil(u128::from(units)))
}

/// Returns the units per request: the smallest number for which a whole number of units flows in per nanosecond,
/// because time has no finer resolution. If this number is too large, returns the largest number that fits.
fn unit_of_bucket(quota: Quota) -> u64 {
    let (requests, period) = (quota.requests(), quota.period_nanos());
    let supplied = (u128::from(requests) << 62).div_ceil(u128::from(period)) + u128::from(quota.most());
    let most = narrow(u128::from(LEVELS) / supplied);
    let whole = period / gcd(requests, period);
    whole.min(most)
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
