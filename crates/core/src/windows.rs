//! What two windows allow at one time: whether there is room, how much, and when there will be more. Plain numbers; it
//! makes no decisions.

use std::time::Duration;

use crate::Quota;

/// Both windows at one time. The previous one is final, or taken as final.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) previous: u64,
    pub(crate) current: u64,
    /// Time since the start of the current window.
    pub(crate) elapsed: u64,
    /// How far a clock lags that reads an earlier window.
    pub(crate) lag: u64,
}

impl Windows {
    /// Whether the current window may hold this many requests now.
    #[inline]
    pub(crate) fn have_room(&self, quota: &Quota, count: u64) -> bool {
        let Some(room) = quota.requests().checked_sub(count) else { return false };
        let period = quota.period_nanos();
        let weighted = || u128::from(self.previous) * u128::from(period - self.elapsed);
        self.previous <= room || weighted() <= u128::from(room) * u128::from(period)
    }

    /// Nanoseconds from `elapsed` on until a cost is within the quota in this window, if it ever is.
    pub(crate) fn opens_in_this(&self, quota: &Quota, cost: u64) -> Option<u64> {
        let count = self.current.checked_add(cost)?;
        if self.have_room(quota, count) {
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

/// How long after a window's start `previous` requests of the window before leave `room` for others.
fn opens(room: u64, previous: u64, period: u64) -> Option<u64> {
    if previous <= room {
        return Some(0);
    }
    // previous * (period - at) <= room * period
    let still = u128::from(room) * u128::from(period) / u128::from(previous);
    u64::try_from(u128::from(period) - still).ok()
}
