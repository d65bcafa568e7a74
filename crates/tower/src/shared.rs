//! One limit for every request of a service.

use std::time::Duration;

use weir_core::{Admitted, Limiter, Refused};

use crate::{Admit, MonotonicClock, Place, Reserve, Turn};

/// Charges one [`Limiter`] a cost of one for each request, whatever it is. Clones share the limiter.
///
/// Keep a clone of the limiter to [`retune`](Limiter::retune) it at run time.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// use weir_tower::{Admit, LimiterAdmit, MonotonicClock};
///
/// let clock = MonotonicClock::start();
/// let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(3600), None)?;
/// let admit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
/// assert!(admit.admit(&"a request").is_ok());
/// assert!(admit.admit(&"another").is_err());
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct LimiterAdmit {
    limiter: Limiter,
    clock: MonotonicClock,
}

impl LimiterAdmit {
    /// Charges `limiter` by the time of `clock`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    ///
    /// use weir_tower::{Admit, LimiterAdmit};
    ///
    /// let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let clone = limit.clone(); // of the same limit
    /// assert!(limit.admit(&"a request").is_ok());
    /// assert!(clone.admit(&"another").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new(limiter: Limiter, clock: MonotonicClock) -> Self {
        Self { limiter, clock }
    }
}

impl<Request> Admit<Request> for LimiterAdmit {
    type Pass = Admitted;
    type Refusal = Refused;

    fn admit(&self, _: &Request) -> Result<Admitted, Refused> {
        self.limiter.check(self.clock.now(), 1)
    }
}

impl<Request> Reserve<Request> for LimiterAdmit {
    type Place = LimiterPlace;
    type Refusal = Refused;

    fn reserve(&self, _: &Request, max_wait: Duration) -> Result<Turn<LimiterPlace>, Refused> {
        let now = self.clock.now();
        let reserved = self.limiter.reserve(now, 1, now.saturating_add(max_wait))?;
        let admitted = Admitted { standing: reserved.standing, charge: reserved.charge };
        if reserved.at <= now {
            return Ok(Turn::Now(admitted));
        }
        let place = LimiterPlace { limit: self.clone(), admitted: Some(admitted) };
        Ok(Turn::At(self.clock.instant(reserved.at), place))
    }
}

/// A place in the line of a [`LimiterAdmit`]; see [`Turn`] for an example.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// # let clock = weir_tower::MonotonicClock::start();
/// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
///
/// use weir_tower::{LimiterAdmit, Reserve, Turn};
///
/// let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
/// let patience = Duration::from_secs(90);
/// line.reserve(&"first", patience)?;
/// let Turn::At(_, place) = line.reserve(&"second", patience)? else { panic!("not now") };
/// assert!(line.reserve(&"third", patience).is_err()); // two minutes
/// drop(place); // the second went away
/// assert!(line.reserve(&"third", patience).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LimiterPlace {
    limit: LimiterAdmit,
    /// None once it is used.
    admitted: Option<Admitted>,
}

impl Place for LimiterPlace {
    type Pass = Admitted;

    fn take(mut self) -> Admitted {
        self.admitted.take().expect("a place is used once")
    }
}

impl Drop for LimiterPlace {
    fn drop(&mut self) {
        if let Some(admitted) = self.admitted.take() {
            self.limit.limiter.refund(admitted.charge, || self.limit.clock.now());
        }
    }
}
