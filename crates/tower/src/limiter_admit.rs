//! One limit for every request of a service.

use weir_core::{Admitted, Limiter, Refused};

use crate::{Admit, MonotonicClock};

/// Charges one [`Limiter`] a cost of one for each request, whatever it is. Clones share the limiter.
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
