//! The state of a limiter at a decision. Its numbers are computed only when a caller reads them.

use std::time::Duration;

use crate::{
    Quota, Time,
    supply::{LevelAt, Supply},
    windows::Windows,
};

/// The state of a limiter at a decision, as a copy that does not change.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time};
///
/// let now = Time::from_nanos(0);
/// let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?);
/// let standing = limiter.charge(now, 4)?.standing;
/// assert_eq!(standing.remaining(), 6);
/// assert_eq!(standing.reset_after(), Duration::from_millis(400));
/// assert_eq!(standing.retry_after(7), Some(Duration::from_millis(100)));
/// assert_eq!(standing.retry_after(11), None); // never: more than the burst
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    quota: Quota,
    counted: Counted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    Level(LevelAt),
    Counter(Windows),
    Log(Logged),
}

/// The standing of a log, which cannot be computed later. Times are nanoseconds from the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) remaining: u64,
    /// The cost of the decision, and the time until this cost would be admitted.
    pub(crate) cost: u64,
    pub(crate) opens: u64,
    pub(crate) reset: u64,
}

impl Logged {
    /// Returns this standing for a request of this cost that must wait, after a search that wrongly found room for the
    /// cost.
    pub(crate) fn closed(self, cost: u64, opens: u64) -> Self {
        let (remaining, reset) = (self.remaining.min(cost.saturating_sub(1)), self.reset.max(opens));
        Self { remaining, opens: self.opens.max(opens), reset, ..self }
    }
}

impl Standing {
    #[inline]
    pub(crate) fn of_level(supply: &Supply, level: u64, floor: u64, now: Time) -> Self {
        Self { quota: supply.quota(), counted: Counted::Level(supply.level_at(level, floor, now)) }
    }

    pub(crate) fn of_counter(quota: Quota, windows: Windows) -> Self {
        Self { quota, counted: Counted::Counter(windows) }
    }

    pub(crate) fn of_log(quota: Quota, logged: Logged) -> Self {
        Self { quota, counted: Counted::Log(logged) }
    }

    /// Returns the standing for a request behind a queue, which is admitted after `opens`. `opens` is none if the
    /// request is never admitted. `remaining` is the number of requests that the queue leaves.
    pub(crate) fn queued(quota: Quota, (cost, remaining): (u64, u64), opens: Option<Duration>) -> Self {
        let nanos = |wait: Duration| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let opens = opens.map_or(u64::MAX, nanos);
        let remaining = remaining.min(cost.saturating_sub(1));
        Self::of_log(quota, Logged { remaining, cost, opens, reset: opens })
    }

    /// Returns the quota that was in force at the decision.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let limiter = Limiter::new(now, quota);
    ///
    /// assert_eq!(limiter.charge(now, 1)?.standing.quota().requests(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Returns the number of whole requests that could be admitted at the time of the decision.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let limiter = Limiter::new(now, quota);
    ///
    /// assert_eq!(limiter.charge(now, 4)?.standing.remaining(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remaining(&self) -> u64 {
        match &self.counted {
            Counted::Level(level) => level.remaining(&self.quota),
            Counted::Counter(windows) => windows.remaining(&self.quota),
            Counted::Log(logged) => logged.remaining,
        }
    }

    /// Returns the time until the whole burst is free again, if no other request is admitted. For a window, the time
    /// until it ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let limiter = Limiter::new(now, quota);
    ///
    /// let standing = limiter.charge(now, 4)?.standing;
    /// assert_eq!(standing.reset_after(), Duration::from_millis(400));
    /// assert_eq!(limiter.peek(now.saturating_add(standing.reset_after())).remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset_after(&self) -> Duration {
        match &self.counted {
            Counted::Level(level) => level.reset_after(&self.quota),
            Counted::Counter(windows) => windows.reset_after(&self.quota),
            Counted::Log(logged) => Duration::from_nanos(logged.reset),
        }
    }

    /// Returns the time until a request of this cost would be admitted, if no other request is admitted before. Zero if
    /// the request would be admitted immediately. None if the cost exceeds the largest cost that can be admitted. The
    /// time is rounded up: a client that waits this long is admitted.
    ///
    /// A sliding window log returns the shortest wait only for the cost of the decision.
    /// [`Limiter::peek`](crate::Limiter::peek) is a decision of cost 1. For another cost that must wait, the log
    /// returns the time until the whole log is free.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let limiter = Limiter::new(now, quota);
    ///
    /// let standing = limiter.charge(now, 9)?.standing;
    /// assert_eq!(standing.retry_after(1), Some(Duration::ZERO));
    /// assert_eq!(standing.retry_after(3), Some(Duration::from_millis(200)));
    /// assert_eq!(standing.retry_after(11), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_after(&self, cost: u64) -> Option<Duration> {
        match &self.counted {
            Counted::Level(level) => level.retry_after(&self.quota, cost),
            Counted::Counter(windows) => windows.retry_after(&self.quota, cost),
            Counted::Log(_) if cost > self.quota.most() => None,
            Counted::Log(logged) if cost <= logged.remaining => Some(Duration::ZERO),
            Counted::Log(logged) if cost == logged.cost => Some(Duration::from_nanos(logged.opens)),
            Counted::Log(logged) => Some(Duration::from_nanos(logged.reset)),
        }
    }
}
