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
//! of supply instead of nanoseconds. For windows it grows by `requests` at each boundary. A leaky bucket goes by the
//! same line, but a request is let through only when the floor has reached all that came before it.
//!
//! One may think of seats in a row: whoever is let through at a moment takes seats that nobody has, between the floor and
//! the ceiling of that moment. In any stretch of time that makes at most the burst and what flowed in meanwhile, whatever
//! the order in which the seats are taken: this is why threads may hold seats for a while (see `lease`), and why a
//! *reservation* is no more than a seat beyond the ceiling of now.
//!
//! Counting in units of supply makes costs whole numbers; it is time that is converted, from one base, with one
//! division rounded down (by a reciprocal, and exact all the same). So errors never add up: where the emission interval is a whole number of nanoseconds the
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

/// How far ahead a place may be reserved.
const LINE: Duration = Duration::from_hours(12);

/// A level this far ahead of the clock cannot come from threads that read it in different order: the clock was set
/// back.
pub(crate) const SET_BACK: Duration = Duration::from_hours(24);

/// The same in nanoseconds.
const DAY: u64 = 86_400_000_000_000;

/// How a quota supplies its units, from a base in time on: `units` each `nanos`, steadily or a whole window's at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply {
    quota: Quota,
    units: u64,
    nanos: u64,
    /// Whether it supplies one unit each nanosecond, so that levels are times: of most quotas.
    is_time: bool,
    /// `units / nanos` in 2^-64, rounded down; for windows `1 / nanos`.
    per_nano: u128,
    /// Units of one request.
    unit: u64,
    /// Units between floor and ceiling: what can be admitted at once.
    capacity: u64,
    /// Units of a day and of the costliest request: no level is further ahead of the floor.
    day: u64,
    /// For windows the start of one.
    base: Time,
}

/// What is free at a moment, or by how much more is promised than there is: in units of the supply that says so.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Free {
    Left(u64),
    Owed(u64),
}

impl Supply {
    pub(crate) fn new(quota: Quota, base: Time) -> Self {
        let (requests, period) = (quota.requests(), quota.period_nanos());
        if quota.strategy() == Strategy::FixedWindow {
            let base = Time::from_nanos(base.as_nanos() - base.as_nanos() % period);
            let day = (DAY / period + 2).saturating_mul(requests);
            let (per_nano, capacity) = ((1 << 64) / u128::from(period), quota.burst());
            return Self {
                quota,
                units: requests,
                nanos: period,
                is_time: false,
                per_nano,
                unit: 1,
                capacity,
                day,
                base,
            };
        }
        let unit = unit_of_bucket(quota);
        let divisor = gcd(requests * unit, period);
        let (units, nanos) = (requests * unit / divisor, period / divisor);
        let per_nano = (u128::from(units) << 64) / u128::from(nanos);
        let day = narrow(((per_nano * u128::from(DAY)) >> 64) + 1).saturating_add(quota.most() * unit);
        let (is_time, capacity) = ((units, nanos) == (1, 1), at_once(&quota) * unit);
        Self { quota, units, nanos, is_time, per_nano, unit, capacity, day, base }
    }

    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }

    /// Units of one request.
    pub(crate) fn unit(&self) -> u64 {
        self.unit
    }

    /// Units between floor and ceiling.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether seats may be taken in any order: not where each has to wait for those before it.
    pub(crate) fn lends(&self) -> bool {
        !self.is_line()
    }

    fn is_window(&self) -> bool {
        self.quota.strategy() == Strategy::FixedWindow
    }

    fn is_line(&self) -> bool {
        self.quota.strategy() == Strategy::LeakyBucket
    }

    /// What has flowed by until `now`.
    #[inline]
    pub(crate) fn floor(&self, now: Time) -> u64 {
        let elapsed = match now.as_nanos().checked_sub(self.base.as_nanos()) {
            Some(elapsed) if elapsed <= HORIZON => elapsed,
            _ => self.beyond_horizon(now),
        };
        if self.is_time {
            return elapsed;
        }
        let (flow, each) = if self.is_window() { (1, self.units) } else { (self.units, 1) };
        // Elapsed is below 2^63, so what the reciprocal lacks makes less than one unit: the quotient is right or one short.
        let [whole, fraction] = [self.per_nano >> 64, self.per_nano & u128::from(u64::MAX)].map(narrow);
        let quotient = elapsed * whole + narrow((u128::from(elapsed) * u128::from(fraction)) >> 64);
        let rest = elapsed.wrapping_mul(flow).wrapping_sub(quotient.wrapping_mul(self.nanos));
        (quotient + u64::from(rest >= self.nanos)) * each
    }

    /// What has elapsed where that is nothing yet, or too much.
    #[cold]
    fn beyond_horizon(&self, now: Time) -> u64 {
        if now < self.base { 0 } else { HORIZON }
    }

    /// What has been supplied until `now`.
    pub(crate) fn ceiling(&self, now: Time) -> u64 {
        self.floor(now) + self.capacity
    }

    /// The first moment at which the floor reaches `level`.
    fn reached(&self, level: u64) -> Time {
        let elapsed = if self.is_window() {
            level.div_ceil(self.units).saturating_mul(self.nanos)
        } else {
            time_of(level, self.units, self.nanos)
        };
        Time::from_nanos(self.base.as_nanos().saturating_add(elapsed))
    }

    /// The level after a charge when the floor is there, or none if it is refused.
    #[inline]
    pub(crate) fn charge(&self, level: u64, floor: u64, cost: u64) -> Option<u64> {
        let after = level.max(floor).checked_add(cost.checked_mul(self.unit)?)?;
        let within = after <= floor + self.capacity || self.is_line() && level <= floor && cost <= self.quota.most();
        within.then_some(after)
    }

    /// The level after a charge that may wait, and the moment at which it may go; none if it is too much at any time,
    /// would have to wait for longer than until `latest`, or the line is full.
    pub(crate) fn reserve(&self, level: u64, now: Time, cost: u64, latest: Time) -> Option<(u64, Time)> {
        let (floor, most) = (self.floor(now), self.quota.most());
        let mut before = level.max(floor);
        if self.is_window() && before % self.units + cost > self.units {
            // A request is of one window.
            before = before.next_multiple_of(self.units);
        }
        let after = before.checked_add(cost.checked_mul(self.unit)?)?;
        if cost > most || self.is_line() && after - floor > most * self.unit {
            return None;
        }
        let due = if self.is_line() { before } else { after.saturating_sub(self.capacity) };
        let at = if due <= floor { now } else { self.reached(due).max(now) };
        (at <= latest.min(now.saturating_add(LINE)) && after < LEVELS).then_some((after, at))
    }

    /// The level after giving back a charge of `cost` made at `charged_at`, which lifted the level to `mark`.
    ///
    /// What has flowed in since then is not given back: it may have been lost on a bucket that was full only because
    /// of this charge, or taken by others. So a charge given back at once leaves no trace, in a window at any time
    /// within it, and none ever gives more than was not yet refilled. For this `now` must not be earlier than any time
    /// that went into `level`. While places beyond the ceiling are promised, a charge gives back what is not promised to
    /// those after it: they keep their moments.
    pub(crate) fn refund(&self, level: u64, charged_at: Time, now: Time, cost: u64, mark: u64) -> u64 {
        let mut units = cost.saturating_mul(self.unit);
        let lost = if level > self.ceiling(now) {
            units = units.min(mark.saturating_sub(self.floor(now)));
            level.saturating_sub(mark)
        } else {
            let Some(refilled) = self.floor(now).checked_sub(self.floor(charged_at)) else {
                return level;
            };
            refilled
        };
        level.saturating_sub(units.saturating_sub(lost))
    }

    /// Whether `level` is so far ahead that the clock must have been set back. Then all is used up, and refilled from now
    /// on.
    #[inline]
    pub(crate) fn is_set_back(&self, level: u64, floor: u64) -> bool {
        level > floor.saturating_add(self.day)
    }

    /// Whether all of the burst is free, so that forgetting `level` refills nothing early.
    pub(crate) fn is_idle(&self, level: u64, now: Time) -> bool {
        level <= self.floor(now)
    }

    /// What is free at `since`, and what of a burst that is.
    pub(crate) fn free(&self, level: u64, since: Time) -> Free {
        let (floor, ceiling) = (self.floor(since), self.ceiling(since));
        let level = if self.is_set_back(level, floor) { ceiling } else { level };
        if level <= ceiling { Free::Left(ceiling - level.max(floor)) } else { Free::Owed(level - ceiling) }
    }

    /// The level in this supply for what `level` was in `old`, if this one took over at `since`.
    ///
    /// What is free afterwards is at most what was free before, in requests and as a share of the burst: a change gives
    /// nobody anything, and from then on the new rate refills. What was promised beyond the burst stays as many requests, to
    /// be worked off at the new rate. The result depends on the arguments alone, so that all threads that compute it agree.
    pub(crate) fn carry_over(&self, old: &Supply, level: u64, since: Time) -> u64 {
        match old.free(level, since) {
            Free::Left(free) => self.with_free(free, old.unit, old.capacity / old.unit, since),
            Free::Owed(owed) => {
                let owed = narrow((u128::from(owed) * u128::from(self.unit)).div_ceil(u128::from(old.unit)));
                self.ceiling(since).saturating_add(owed).min(self.ceiling(since.saturating_add(LINE)))
            }
        }
    }

    /// The level that leaves `free` / `unit` requests of `burst` free at `since`, or the same share of this burst if that
    /// is less.
    pub(crate) fn with_free(&self, free: u64, unit: u64, burst: u64, since: Time) -> u64 {
        let at_once = self.capacity / self.unit;
        let free = u128::from(free);
        let kept = if at_once < burst { free * u128::from(at_once) / u128::from(burst) } else { free };
        let free = narrow(kept * u128::from(self.unit) / u128::from(unit));
        self.ceiling(since) - free.min(self.capacity)
    }

    /// Where a level stands at `now`, when the floor is there.
    #[inline]
    pub(crate) fn stand(&self, level: u64, floor: u64, now: Time) -> Stand {
        let elapsed = now.as_nanos().wrapping_sub(self.base.as_nanos()).cast_signed();
        Stand { unit: self.unit, elapsed, level, floor }
    }
}

/// A level and the floor at one moment: all that questions about it need beside the quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stand {
    unit: u64,
    /// Since the base; negative before it.
    elapsed: i64,
    level: u64,
    floor: u64,
}

impl Stand {
    /// Whole requests that could be charged at once.
    pub(crate) fn remaining(&self, quota: &Quota) -> u64 {
        let capacity = at_once(quota) * self.unit;
        (self.floor + capacity).saturating_sub(self.level.max(self.floor)) / self.unit
    }

    /// How long until all of the burst is free.
    pub(crate) fn reset_after(&self, quota: &Quota) -> Duration {
        self.wait(quota, self.level)
    }

    /// How long until `cost` would be admitted; none if it never is.
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

    /// How long until the floor reaches a level.
    fn wait(&self, quota: &Quota, level: u64) -> Duration {
        if level <= self.floor {
            return Duration::ZERO;
        }
        let reached = match quota.strategy() {
            Strategy::FixedWindow => level.div_ceil(quota.requests()).saturating_mul(quota.period_nanos()),
            _ => time_of(level, quota.requests() * self.unit, quota.period_nanos()),
        };
        Duration::from_nanos(reached.saturating_add_signed(self.elapsed.saturating_neg()))
    }
}

/// How many requests can be admitted at once.
fn at_once(quota: &Quota) -> u64 {
    if quota.strategy() == Strategy::LeakyBucket { 1 } else { quota.most() }
}

/// Until a supply of `units` each `nanos` has reached `level`, rounded up.
fn time_of(level: u64, units: u64, nanos: u64) -> u64 {
    narrow((u128::from(level) * u128::from(nanos)).div_ceil(u128::from(units)))
}

/// Units of one request: the least that makes the flow a whole number of units per nanosecond, for time is no finer; and
/// if that does not fit, as many as do.
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
