//! The layer: the limit that all its services share.

use std::time::Duration;

use tower_layer::Layer;
use weir_core::{InvalidQuota, Limiter, Quota, Strategy};

use super::RateLimit;
use crate::MonotonicClock;

/// Backpressure: a service is ready when the limit has room for its next request.
///
/// A drop-in replacement for tower's `RateLimitLayer` that can be cloned: the clones of a service, and all services of
/// one layer, share the limit, so they need no `Buffer`. The caller waits in `poll_ready`. If a caller must learn that
/// a wait is too long, use a [`ThroughputLayer`](crate::ThroughputLayer).
///
/// Each request costs one: `poll_ready` knows no request. For other costs, use a `ThroughputLayer`.
///
/// One difference: callers wait in a queue, and a service keeps its position after `poll_ready` returned `Pending`.
/// Drop services that you do not poll again. [`RateLimit`] describes what they cost, for example inside of `load_shed`.
///
/// ```
/// use std::time::Duration;
///
/// use tower::{Service, ServiceBuilder, ServiceExt};
/// use weir_tower::RateLimitLayer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut double = ServiceBuilder::new()
///     .layer(RateLimitLayer::per(2, Duration::from_millis(100))?)
///     .service_fn(async |number: u32| Ok::<_, std::io::Error>(number * 2));
///
/// let start = tokio::time::Instant::now();
/// for number in 0..4 {
///     assert_eq!(double.ready().await?.call(number).await?, number * 2);
/// }
/// assert!(start.elapsed().as_millis() >= 100); // two immediately, then one every 50 ms
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    limiter: Limiter,
    clock: MonotonicClock,
}

impl RateLimitLayer {
    /// A layer that waits for `limiter`. Keep a clone of the limiter to [`retune`](Limiter::retune) it at run time:
    /// waiting callers use the new quota within a second. The layer reaches it in one step after any number of retunes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    ///
    /// use weir_tower::RateLimitLayer;
    ///
    /// let limiter = Limiter::new(clock.now(), quota);
    /// let layer = RateLimitLayer::new(limiter.clone(), clock);
    /// // Later, while the layer is in use:
    /// let limiter = limiter.retune(|| clock.now(), Quota::new(Strategy::TokenBucket, 5, Duration::from_secs(60), None)?);
    /// # let _ = (layer, limiter);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new(limiter: Limiter, clock: MonotonicClock) -> Self {
        Self { limiter, clock }
    }

    /// A layer that admits `requests` per `period`, all of which may arrive at the same time. Tower's layer of this
    /// name refills the whole quota when a period ends. This layer refills it continuously. Both use tokio's clock;
    /// [`new`](Self::new) accepts a faster clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_tower::RateLimitLayer;
    ///
    /// assert!(RateLimitLayer::per(100, Duration::from_secs(1)).is_ok());
    /// let invalid = RateLimitLayer::per(0, Duration::from_secs(1)).unwrap_err();
    /// assert_eq!(invalid.field(), "requests");
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidQuota`] for the arguments for which tower's layer panics.
    pub fn per(requests: u64, period: Duration) -> Result<Self, InvalidQuota> {
        let clock = MonotonicClock::of_tokio();
        let quota = Quota::new(Strategy::TokenBucket, requests, period, None)?;
        Ok(Self::new(Limiter::new(clock.now(), quota), clock))
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, self.limiter.clone(), self.clock)
    }
}
