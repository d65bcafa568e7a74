//! What a user of the layer says: who gets through.

use weir_core::{Full, InFlight, Permit};

/// Decides on one request. Must not block: it is called on the executor.
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
    /// What is known of a request that gets through. It is held until the inner service has answered or the request is
    /// dropped: a permit can be one.
    type Pass;
    /// Why one does not.
    type Refusal;

    /// Lets the request through or not.
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
    /// The refusal; the request then goes no further.
    fn admit(&self, request: &Request) -> Result<Self::Pass, Self::Refusal>;
}

/// So many requests in flight, those beyond refused at once. A request is in flight until the inner service has answered
/// it; while the body of its response is still being sent it no longer counts.
impl<Request> Admit<Request> for InFlight {
    type Pass = Permit;
    type Refusal = Full;

    fn admit(&self, _: &Request) -> Result<Permit, Full> {
        self.acquire(1)
    }
}
