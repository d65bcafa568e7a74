//! The numbers of a limit. Every [`Quota`] is valid: other code never receives a zero or a number that is too large.

use std::{error::Error, fmt, time::Duration};

/// The largest period and burst that fit into the one-word arithmetic: 2^61 (a period of 73 years).
const LARGEST: u64 = 1 << 61;

/// The largest count of a sliding window counter: two counts and the window's index share 126 bits.
const MOST_COUNTED: u64 = 1 << 30;

/// The largest number of requests in a sliding window log, which takes 8 MiB.
const LONGEST_LOG: u64 = 1 << 20;

/// The units of a credit that returns a limit to its full credit, after any charges.
pub(crate) const EVERYTHING: u64 = u64::MAX;

/// The algorithm that counts requests.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time};
///
/// // A limit of ten requests per second, and twenty requests at the same time.
/// let now = Time::from_nanos(0);
/// let at_once = |strategy| {
///     let limiter = Limiter::new(now, Quota::new(strategy, 10, Duration::from_secs(1), None)?);
///     Ok::<_, weir_core::InvalidQuota>((0..20).filter(|_| limiter.charge(now, 1).is_ok()).count())
/// };
/// assert_eq!(at_once(Strategy::TokenBucket)?, 10); // the saved burst
/// assert_eq!(at_once(Strategy::FixedWindow)?, 10); // the whole window
/// assert_eq!(at_once(Strategy::Gcra)?, 1); // strict spacing
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// `requests` in each window of one period, aligned to the Unix epoch. Around the boundary of two windows, twice as
    /// many requests can pass within less than a period: choose another strategy if this matters.
    FixedWindow,
    /// `requests` in a sliding window: the requests of the current window, plus the requests of the previous window
    /// times the part of it that is less than one period old. The strategy needs two counts instead of a list, and is
    /// exact if the requests of the previous window arrived evenly. A caller that always takes as much as possible gets
    /// one request less than the limit in each window: 9 of 10, 999 of 1,000, and half of a limit of 1.
    SlidingWindowCounter,
    /// Exactly `requests` in any period: the limiter stores the time of each request, in 8 bytes.
    SlidingWindowLog,
    /// Tokens for `requests` per period flow in steadily, and up to `burst` tokens (by default `requests`) are saved.
    TokenBucket,
    /// A token bucket that can be overdrawn by `debt`. The bucket pays the debt back before it saves tokens again; see
    /// [`Quota::with_debt`].
    TokenBucketWithDebt,
    /// Requests pass at least one emission interval apart. Up to `burst` requests (by default `requests`) wait in the
    /// queue for their turn. Only [`Limiter::reserve`](crate::Limiter::reserve) and the queue wait. A check that comes
    /// too early is refused.
    LeakyBucket,
    /// A token bucket with strict spacing: `burst` is 1 by default, so requests pass one emission interval apart.
    Gcra,
}

impl Strategy {
    /// All strategies.
    ///
    /// ```
    /// use weir_core::Strategy;
    ///
    /// assert!(Strategy::ALL.contains(&Strategy::Gcra));
    /// ```
    pub const ALL: [Self; 7] = [
        Self::FixedWindow,
        Self::SlidingWindowCounter,
        Self::SlidingWindowLog,
        Self::TokenBucket,
        Self::TokenBucketWithDebt,
        Self::LeakyBucket,
        Self::Gcra,
    ];

    /// Returns true if tokens flow in. False for windows and logs.
    pub(crate) fn is_bucket(self) -> bool {
        !matches!(self, Self::FixedWindow | Self::SlidingWindowCounter | Self::SlidingWindowLog)
    }
}

/// A valid limit: requests per period, a strategy and a burst.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{InvalidQuota, Quota, Strategy};
///
/// let quota = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(1), None)?;
/// assert_eq!(quota.burst(), 100);
/// let nothing = Quota::new(Strategy::TokenBucket, 0, Duration::from_secs(1), None);
/// assert_eq!(nothing, Err(InvalidQuota::ZeroRequests));
/// # Ok::<(), InvalidQuota>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    strategy: Strategy,
    requests: u64,
    period_nanos: u64,
    burst: u64,
    debt: u64,
}

impl Quota {
    /// Returns a quota of `requests` per `period`. `burst` is the number of requests that can be admitted at the same
    /// time; for [`Strategy::LeakyBucket`], the number of requests that can wait. The default of `burst` is 1 for
    /// [`Strategy::Gcra`] and `requests` for the other strategies. Windows have no `burst`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_core::{InvalidQuota, Quota, Strategy};
    ///
    /// let quota = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(1), Some(200))?;
    /// assert_eq!((quota.requests(), quota.burst()), (100, 200));
    /// let invalid = Quota::new(Strategy::FixedWindow, 100, Duration::from_secs(1), Some(200)).unwrap_err();
    /// assert_eq!((invalid, invalid.field()), (InvalidQuota::BurstOfWindow, "burst"));
    /// # Ok::<(), InvalidQuota>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`InvalidQuota`]. Zero is refused everywhere; it never means "unlimited".
    pub fn new(strategy: Strategy, requests: u64, period: Duration, burst: Option<u64>) -> Result<Self, InvalidQuota> {
        let period_nanos = match u64::try_from(period.as_nanos()) {
            Ok(0) => return Err(InvalidQuota::ZeroPeriod),
            Ok(nanos) if nanos <= LARGEST => nanos,
            _ => return Err(InvalidQuota::PeriodTooLong),
        };
        if requests == 0 {
            return Err(InvalidQuota::ZeroRequests);
        }
        if requests > period_nanos {
            return Err(InvalidQuota::TooFast);
        }
        match strategy {
            Strategy::SlidingWindowCounter if requests > MOST_COUNTED => return Err(InvalidQuota::CounterTooLarge),
            Strategy::SlidingWindowLog if requests > LONGEST_LOG => return Err(InvalidQuota::LogTooLong),
            _ => {}
        }
        let burst = match (strategy, burst) {
            (Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog, Some(_)) => {
                return Err(InvalidQuota::BurstOfWindow);
            }
            (_, Some(0)) => return Err(InvalidQuota::ZeroBurst),
            (_, Some(burst)) if burst > LARGEST => return Err(InvalidQuota::BurstTooLarge),
            (_, Some(burst)) => burst,
            (Strategy::Gcra, None) => 1,
            (_, None) => requests,
        };
        Ok(Self { strategy, requests, period_nanos, burst, debt: 0 })
    }

    /// Returns this quota for a bucket that can be overdrawn by `debt` requests. The default is zero.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_core::{InvalidQuota, Quota, Strategy};
    ///
    /// let quota = Quota::new(Strategy::TokenBucketWithDebt, 100, Duration::from_secs(1), Some(150))?.with_debt(50)?;
    /// assert_eq!((quota.burst(), quota.debt()), (150, 50));
    /// let bucket = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(1), None)?;
    /// assert_eq!(bucket.with_debt(50), Err(InvalidQuota::DebtOfOther));
    /// # Ok::<(), InvalidQuota>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidQuota::DebtOfOther`] for every strategy except [`Strategy::TokenBucketWithDebt`];
    /// [`InvalidQuota::DebtTooLarge`] if the sum of burst and debt is more than 2^61.
    pub const fn with_debt(self, debt: u64) -> Result<Self, InvalidQuota> {
        if !matches!(self.strategy, Strategy::TokenBucketWithDebt) {
            return Err(InvalidQuota::DebtOfOther);
        }
        if debt > LARGEST - self.burst {
            return Err(InvalidQuota::DebtTooLarge);
        }
        Ok(Self { debt, ..self })
    }

    /// Returns the strategy.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy};
    /// let quota = Quota::new(Strategy::Gcra, 100, Duration::from_secs(1), None)?;
    /// assert_eq!(quota.strategy(), Strategy::Gcra);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Returns the number of requests per period.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy};
    /// let quota = Quota::new(Strategy::Gcra, 100, Duration::from_secs(1), None)?;
    /// assert_eq!(quota.requests(), 100);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the period.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy};
    /// let quota = Quota::new(Strategy::Gcra, 100, Duration::from_millis(1500), None)?;
    /// assert_eq!(quota.period(), Duration::from_millis(1500));
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_nanos)
    }

    /// Returns the number of requests that can be admitted at the same time. For a leaky bucket, this is the number of
    /// requests that can wait; for a window, its `requests`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy};
    /// let second = Duration::from_secs(1);
    /// assert_eq!(Quota::new(Strategy::TokenBucket, 100, second, None)?.burst(), 100);
    /// assert_eq!(Quota::new(Strategy::TokenBucket, 100, second, Some(250))?.burst(), 250);
    /// assert_eq!(Quota::new(Strategy::Gcra, 100, second, None)?.burst(), 1);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns the number of requests by which the bucket can be overdrawn.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy};
    /// let quota = Quota::new(Strategy::TokenBucketWithDebt, 100, Duration::from_secs(1), None)?;
    /// assert_eq!((quota.debt(), quota.with_debt(20)?.debt()), (0, 20));
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub const fn debt(&self) -> u64 {
        self.debt
    }

    /// Returns the largest cost that can be admitted: `burst` plus `debt`; for a leaky bucket, `burst` plus one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, Strategy};
    /// let quota = Quota::new(Strategy::LeakyBucket, 100, Duration::from_secs(1), Some(9))?;
    /// assert_eq!(quota.most(), 10);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub const fn most(&self) -> u64 {
        self.burst + self.debt + matches!(self.strategy, Strategy::LeakyBucket) as u64
    }

    pub(crate) const fn period_nanos(&self) -> u64 {
        self.period_nanos
    }
}

/// The reason why numbers are not a valid [`Quota`], and how to fix them.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{InvalidQuota, Quota, Strategy};
///
/// let invalid = Quota::new(Strategy::TokenBucket, 0, Duration::from_secs(1), None).unwrap_err();
/// assert_eq!(invalid, InvalidQuota::ZeroRequests);
/// assert_eq!(invalid.to_string(), "requests must be at least 1: zero does not mean unlimited");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidQuota {
    /// `requests` is zero.
    ZeroRequests,
    /// `requests` is more than one per nanosecond, which is finer than any clock.
    TooFast,
    /// `period` is zero.
    ZeroPeriod,
    /// `period` is longer than 73 years.
    PeriodTooLong,
    /// `burst` is zero.
    ZeroBurst,
    /// `burst` is more than 2^61.
    BurstTooLarge,
    /// A window has a `burst`.
    BurstOfWindow,
    /// A sliding window counter has more than 2^30 requests.
    CounterTooLarge,
    /// A sliding window log has more than 2^20 requests.
    LogTooLong,
    /// A strategy without debt has a `debt`.
    DebtOfOther,
    /// The sum of `burst` and `debt` is more than 2^61.
    DebtTooLarge,
}

impl InvalidQuota {
    /// Returns the name of the argument to fix: `requests`, `period`, `burst` or `debt`.
    ///
    /// ```
    /// assert_eq!(weir_core::InvalidQuota::BurstOfWindow.field(), "burst");
    /// ```
    pub const fn field(&self) -> &'static str {
        match self {
            Self::ZeroRequests | Self::TooFast | Self::CounterTooLarge | Self::LogTooLong => "requests",
            Self::ZeroPeriod | Self::PeriodTooLong => "period",
            Self::ZeroBurst | Self::BurstTooLarge | Self::BurstOfWindow => "burst",
            Self::DebtOfOther | Self::DebtTooLarge => "debt",
        }
    }
}

impl fmt::Display for InvalidQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroRequests => "requests must be at least 1: zero does not mean unlimited",
            Self::TooFast => "requests must be at most one per nanosecond: lower requests or lengthen the period",
            Self::ZeroPeriod => "period must be longer than zero",
            Self::PeriodTooLong => "period must be at most 2^61 nanoseconds (73 years)",
            Self::ZeroBurst => "burst must be at least 1: omit it for the default",
            Self::BurstTooLarge => "burst must be at most 2^61",
            Self::BurstOfWindow => "a window has no burst: omit burst, or choose TokenBucket",
            Self::CounterTooLarge => {
                "a sliding window counter counts at most 2^30 requests: choose TokenBucket or FixedWindow"
            }
            Self::LogTooLong => {
                "a sliding window log stores at most 2^20 requests, 8 bytes each: choose SlidingWindowCounter"
            }
            Self::DebtOfOther => "only TokenBucketWithDebt can be overdrawn: omit debt, or choose TokenBucketWithDebt",
            Self::DebtTooLarge => "the sum of burst and debt must be at most 2^61",
        })
    }
}

impl Error for InvalidQuota {}
