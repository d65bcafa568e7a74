//! The arithmetic of two windows at one time: the remaining requests, and the time until there are more. Plain numbers,
//! without decisions.

use std::time::Duration;

use crate::Quota;

/// The counts of the current and the previous window, read together. The count of the previous window is final, or is
/// used as if it were final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    pub(crate) previous: u64,
    pub(crate) current: u64,
    /// The time since the start of the current window.
    pub(crate) elapsed: u64,
    /// How far the thread's clock is behind the start of the current window. Zero if the clock has reached this window.
    pub(crate) lag: u64,
}

impl Windows {
    /// Returns true if the current window can have this many requests now.
    #[inline]
    pub(crate) fn have_room(&self, quota: &Quota, count: u64) -> bool {
        let Some(room) = quota.requests().checked_sub(count) else { return false };
        let period = quota.period_nanos();
        let weighted = || u128::from(self.previous) * u128::from(period - self.elapsed);
        self.previous <= room || weighted() <= u128::from(room) * u128::from(period)
    }

    /// Returns the nanoseconds from `elapsed` until this window admits a cost, if it ever does. A cost of 0 is never
    /// refused.
    pub(crate) fn opens_in_this(&self, quota: &Quota, cost: u64) -> Option<u64> {
        let count = self.current.checked_add(cost)?;
        if cost == 0 || self.have_room(quota, count) {
            return Some(0);
        }
        let room = quota.requests().checked_sub(count)?;
        opens(room, self.previous, quota.period_nanos())
            .filter(|&at| at < quota.period_nanos())
            .map(|at| at.saturating_sub(self.elapsed))
    }

    pub(crate) fn remaining(&self, quota: &Quota) -> u64 {
        let period = u128::from(quota.period_nanos());
        let within = u128::from(quota.requests()) * period;
        let used = u128::from(self.previous) * (period - u128::from(self.elapsed)) + u128::from(self.current) * period;
        u64::try_from(within.saturating_sub(used) / period).unwrap_or(u64::MAX)
    }

    pub(crate) fn retry_after(&self, quota: &Quota, cost: u64) -> Option<Duration> {
        let room = quota.requests().checked_sub(cost)?;
        let wait = self.opens_in_this(quota, cost).or_else(|| {
            let next = quota.period_nanos() - self.elapsed;
            Some(next.saturating_add(opens(room, self.current, quota.period_nanos())?))
        });
        match wait? {
            0 => Some(Duration::ZERO),
            wait => Some(Duration::from_nanos(wait.saturating_add(self.lag))),
        }
    }

    pub(crate) fn reset_after(&self, quota: &Quota) -> Duration {
        let period = quota.period_nanos();
        let rest = period - self.elapsed;
        Duration::from_nanos(match (self.previous, self.current) {
            (0, 0) => 0,
            (_, 0) => rest + self.lag,
            _ => rest.saturating_add(period).saturating_add(self.lag),
        })
    }
}

/// Returns the time from a window's start until `previous` requests of the previous window leave `room` for others.
fn opens(room: u64, previous: u64, period: u64) -> Option<u64> {
    if previous <= room {
        return Some(0);
    }
    // previous * (period - at) <= room * period
    let still = u128::from(room) * u128::from(period) / u128::from(previous);
    u64::try_from(u128::from(period) - still).ok()
}
