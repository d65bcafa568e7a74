//! The answers of a limiter. This module charges nothing.

use std::{error::Error, fmt, time::Duration};

use crate::{Standing, Time, meter::Receipt};

/// An admitted request.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limiter = Limiter::new(now, quota);
/// let admitted = limiter.charge(now, 4)?;
/// assert_eq!(admitted.standing.remaining(), 6); // for the response's headers
/// limiter.refund(admitted.charge, || now); // if the work was never done
/// assert_eq!(limiter.peek(now).remaining(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Admitted {
    /// The limiter's standing, including this request.
    pub standing: Standing,
    /// The charge. Give it back if the request does not use it.
    pub charge: Charge,
}

/// A request that is admitted now or at a later time.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limiter = Limiter::new(now, quota);
/// limiter.charge(now, 10)?;
/// let in_a_second = now.saturating_add(Duration::from_secs(1));
/// let reserved = limiter.reserve(now, 1, in_a_second)?;
/// assert_eq!(reserved.at.duration_since(now), Duration::from_millis(100)); // sleep that long
/// // Or, if the client disconnects meanwhile, give the reservation to the next request.
/// limiter.refund(reserved.charge, || now);
/// assert_eq!(limiter.reserve(now, 1, in_a_second)?.at, reserved.at);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Reserved {
    /// The time from which the request is admitted.
    pub at: Time,
    /// The limiter's standing, including this request.
    pub standing: Standing,
    /// The charge. Give it back if the request does not use it.
    pub charge: Charge,
}

/// The charge of one request on a limiter. Pass it to [`Limiter::refund`](crate::Limiter::refund) at most once.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limiter = Limiter::new(now, quota);
/// let charge = limiter.charge(now, 1)?.charge;
/// // The charge can travel with the request, and another thread can give it back.
/// let there = limiter.clone();
/// std::thread::spawn(move || there.refund(charge, || now)).join().expect("no panic");
/// assert_eq!(limiter.peek(now).remaining(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Charge {
    pub(crate) receipt: Receipt,
    /// The number of retunes before the charge.
    pub(crate) retunes: u64,
}

/// A refused request. Nothing was charged.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limiter = Limiter::new(now, quota);
/// limiter.charge(now, 10)?;
/// let refused = limiter.charge(now, 2).unwrap_err();
/// assert_eq!((refused.cost, refused.standing.remaining()), (2, 0));
/// assert_eq!(refused.to_string(), "over the limit: retry after 200ms");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// The limiter's standing.
    pub standing: Standing,
    /// The cost of the request.
    pub cost: u64,
}

impl Refused {
    /// Returns the time until the request would be admitted, if no other request is admitted before. None if the
    /// request can never be admitted, because its cost exceeds the largest cost that the quota can admit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let limiter = Limiter::new(now, quota);
    /// limiter.charge(now, 10)?;
    /// let refused = limiter.charge(now, 2).unwrap_err();
    /// let later = now.saturating_add(refused.retry_after().expect("it fits the burst"));
    /// assert!(limiter.charge(later, 2).is_ok());
    /// assert_eq!(limiter.charge(later, 11).unwrap_err().retry_after(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.standing.retry_after(self.cost)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after() {
            Some(wait) => write!(f, "over the limit: retry after {wait:?}"),
            None => {
                write!(f, "a cost of {} exceeds the maximum cost of {}", self.cost, self.standing.quota().most())
            }
        }
    }
}

impl Error for Refused {}
