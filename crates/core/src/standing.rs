//! The state of a limiter at a decision. Its numbers are computed only when they are read.

use std::time::Duration;

use crate::{
    Quota, Time,
    supply::{Stand, Supply},
    windows::Windows,
};

/// What a limiter had left at a decision: a snapshot that no longer changes.
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
    quota: Quota,
    counted: Counted,
}

#[derive(Clone, Copy, Debug)]
enum Counted {
    Level(Stand),
    Counter(Windows),
    Log(Logged),
}

/// The standing of a log, which cannot be computed later. In nanoseconds from the decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged {
    pub(crate) remaining: u64,
    /// The cost of the decision, and how long until it would be admitted.
    pub(crate) cost: u64,
    pub(crate) opens: u64,
    pub(crate) reset: u64,
}

impl Logged {
    /// This standing for a request of this cost that must wait. It corrects a search that found room for the cost.
    pub(crate) fn closed(self, cost: u64, opens: u64) -> Self {
        let (remaining, reset) = (self.remaining.min(cost.saturating_sub(1)), self.reset.max(opens));
        Self { remaining, opens: self.opens.max(opens), reset, ..self }
    }
}

impl Standing {
    #[inline]
    pub(crate) fn of_level(supply: &Supply, level: u64, floor: u64, now: Time) -> Self {
        Self { quota: supply.quota(), counted: Counted::Level(supply.stand(level, floor, now)) }
    }

    pub(crate) fn of_counter(quota: Quota, windows: Windows) -> Self {
        Self { quota, counted: Counted::Counter(windows) }
    }

    pub(crate) fn of_log(quota: Quota, logged: Logged) -> Self {
        Self { quota, counted: Counted::Log(logged) }
    }

    /// The standing for a request behind a queue. It is admitted after `opens`; none if it is never admitted.
    pub(crate) fn queued(quota: Quota, cost: u64, opens: Option<Duration>) -> Self {
        let nanos = |wait: Duration| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let opens = opens.map_or(u64::MAX, nanos);
        Self::of_log(quota, Logged { remaining: 0, cost, opens, reset: opens })
    }

    /// The quota that was in force.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let limiter = Limiter::new(now, quota);
    ///
    /// assert_eq!(limiter.check(now, 1)?.standing.quota().requests(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// How many requests could be admitted at once now, in whole requests.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let limiter = Limiter::new(now, quota);
    ///
    /// assert_eq!(limiter.check(now, 4)?.standing.remaining(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remaining(&self) -> u64 {
        match &self.counted {
            Counted::Level(stand) => stand.remaining(&self.quota),
            Counted::Counter(windows) => windows.remaining(&self.quota),
            Counted::Log(logged) => logged.remaining,
        }
    }

    /// How long until the whole burst is free again, if no other request is admitted; for a window, until it ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let limiter = Limiter::new(now, quota);
    ///
    /// let standing = limiter.check(now, 4)?.standing;
    /// assert_eq!(standing.reset_after(), Duration::from_millis(400));
    /// assert_eq!(limiter.peek(now.saturating_add(standing.reset_after())).remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset_after(&self) -> Duration {
        match &self.counted {
            Counted::Level(stand) => stand.reset_after(&self.quota),
            Counted::Counter(windows) => windows.reset_after(&self.quota),
            Counted::Log(logged) => Duration::from_nanos(logged.reset),
        }
    }

    /// How long until a request of this cost would be admitted, if no other is: zero if it would be now, none if it
    /// exceeds what can ever be admitted. Rounded up: a client that waits this long is admitted.
    ///
    /// A sliding window log returns the shortest wait for the cost of the decision (also of
    /// [`Limiter::peek`](crate::Limiter::peek)). For other costs that must wait, it returns the time until all of the
    /// log is free.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let limiter = Limiter::new(now, quota);
    ///
    /// let standing = limiter.check(now, 9)?.standing;
    /// assert_eq!(standing.retry_after(1), Some(Duration::ZERO));
    /// assert_eq!(standing.retry_after(3), Some(Duration::from_millis(200)));
    /// assert_eq!(standing.retry_after(11), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_after(&self, cost: u64) -> Option<Duration> {
        match &self.counted {
            Counted::Level(stand) => stand.retry_after(&self.quota, cost),
            Counted::Counter(windows) => windows.retry_after(&self.quota, cost),
            Counted::Log(_) if cost > self.quota.most() => None,
            Counted::Log(logged) if cost <= logged.remaining => Some(Duration::ZERO),
            Counted::Log(logged) if cost == logged.cost => Some(Duration::from_nanos(logged.opens)),
            Counted::Log(logged) => Some(Duration::from_nanos(logged.reset)),
        }
    }
}
