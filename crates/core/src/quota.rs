//! What a limit allows. A [`Quota`] that exists is valid: later code never meets a zero or a number that does not fit.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The largest period and burst that the one-word arithmetic holds: 2^61 (a period of 73 years).
const LARGEST: u64 = 1 << 61;

/// How requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// `requests` in each window of one period, windows being aligned to the Unix epoch. Around the boundary of two
    /// windows twice as many can pass within less than a period: choose another strategy where that matters.
    FixedWindow,
    /// `requests` per period flow in steadily, and up to `burst` of them (by default `requests`) are saved up.
    TokenBucket,
    /// The same with strict spacing: `burst` is 1 by default, so requests pass one emission interval apart.
    Gcra,
}

/// A valid limit: so many requests per period, by one strategy, with so much burst.
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
}

impl Quota {
    /// A limit of `requests` per `period`. `burst` is how many may come at once; by default `requests` for
    /// [`Strategy::TokenBucket`] and 1 for [`Strategy::Gcra`]; a window has none beside its `requests`.
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
        let burst = match (strategy, burst) {
            (Strategy::FixedWindow, Some(_)) => return Err(InvalidQuota::BurstOfWindow),
            (_, Some(0)) => return Err(InvalidQuota::ZeroBurst),
            (_, Some(burst)) if burst > LARGEST => return Err(InvalidQuota::BurstTooLarge),
            (_, Some(burst)) => burst,
            (Strategy::FixedWindow | Strategy::TokenBucket, None) => requests,
            (Strategy::Gcra, None) => 1,
        };
        Ok(Self { strategy, requests, period_nanos, burst })
    }

    /// How requests are counted.
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// How many requests a period admits.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// The period.
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_nanos)
    }

    /// How many requests can be admitted at once; for a window its `requests`.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    pub(crate) const fn period_nanos(&self) -> u64 {
        self.period_nanos
    }
}

/// Why numbers do not make a [`Quota`], and how to mend it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InvalidQuota {
    /// `requests` is zero.
    ZeroRequests,
    /// More than one request per nanosecond: finer than any clock.
    TooFast,
    /// `period` is zero.
    ZeroPeriod,
    /// `period` is longer than 73 years.
    PeriodTooLong,
    /// `burst` is zero.
    ZeroBurst,
    /// `burst` is more than 2^61.
    BurstTooLarge,
    /// A window with a `burst`.
    BurstOfWindow,
}

impl InvalidQuota {
    /// The argument that is to be mended: `requests`, `period` or `burst`.
    ///
    /// ```
    /// assert_eq!(weir_core::InvalidQuota::BurstOfWindow.field(), "burst");
    /// ```
    pub const fn field(&self) -> &'static str {
        match self {
            Self::ZeroRequests | Self::TooFast => "requests",
            Self::ZeroPeriod | Self::PeriodTooLong => "period",
            Self::ZeroBurst | Self::BurstTooLarge | Self::BurstOfWindow => "burst",
        }
    }
}

impl fmt::Display for InvalidQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroRequests => "requests must be at least 1: zero does not mean unlimited",
            Self::TooFast => "at most one request per nanosecond can be counted: lower requests or lengthen the period",
            Self::ZeroPeriod => "period must be longer than zero",
            Self::PeriodTooLong => "period must be at most 2^61 nanoseconds (73 years)",
            Self::ZeroBurst => "burst must be at least 1: leave it out for the default",
            Self::BurstTooLarge => "burst must be at most 2^61",
            Self::BurstOfWindow => "a fixed window has no burst: leave it out, or choose TokenBucket",
        })
    }
}

impl Error for InvalidQuota {}
