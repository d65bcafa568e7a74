//! The trait that a user of the layer implements: it decides which requests are admitted.

use weir_core::{Full, InFlight, Permit};

/// Decides on one request. `admit` must not block, because it is called on the executor.
///
/// ```
/// use weir_tower::Admit;
///
/// struct Even;
///
/// impl Admit<u32> for Even {
///     type Pass = ();
///     type Refusal = &'static str;
///
///     fn admit(&self, request: &u32) -> Result<(), &'static str> {
///         if request % 2 == 0 { Ok(()) } else { Err("odd") }
///     }
/// }
///
/// assert_eq!(Even.admit(&3), Err("odd"));
/// ```
pub trait Admit<Request> {
    /// Data about an admitted request, such as a permit, kept until the inner service has answered or the request is
    /// dropped.
    type Pass;
    /// The reason for a refusal.
    type Refusal;

    /// Admits or refuses the request.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    ///
    /// use weir_tower::{Admit, LimiterAdmit};
    ///
    /// let admit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// assert_eq!(admit.admit(&"first")?.standing.remaining(), 0);
    /// assert!(admit.admit(&"second").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The refusal; the request then does not reach the inner service.
    fn admit(&self, request: &Request) -> Result<Self::Pass, Self::Refusal>;
}

/// A maximum number of requests in flight; requests beyond it are refused immediately. A request is in flight until the
/// inner service returns the response. The time in which the response body is sent does not count.
impl<Request> Admit<Request> for InFlight {
    type Pass = Permit;
    type Refusal = Full;

    fn admit(&self, _: &Request) -> Result<Permit, Full> {
        self.acquire(1)
    }
}
