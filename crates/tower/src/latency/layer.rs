//! The layer: what is shared by all services that it makes. It never decides anything itself.

use tower_layer::Layer;

use super::LatencyService;

/// Puts a [`LatencyService`] around each service.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// use weir_tower::{HttpAnswer, LatencyLayer, LimiterAdmit, MonotonicClock};
///
/// let clock = MonotonicClock::start();
/// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 100, Duration::from_secs(1), None)?);
/// let layer = LatencyLayer::new(LimiterAdmit::new(limiter, clock), HttpAnswer);
/// # let _ = layer;
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct LatencyLayer<A, N> {
    admit: A,
    answer: N,
}

impl<A, N> LatencyLayer<A, N> {
    /// A layer that asks `admit` and answers with `answer`. Every service that it is put around gets clones of both, so
    /// let clones of `admit` share their limits.
    pub const fn new(admit: A, answer: N) -> Self {
        Self { admit, answer }
    }
}

impl<S, A: Clone, N: Clone> Layer<S> for LatencyLayer<A, N> {
    type Service = LatencyService<S, A, N>;

    fn layer(&self, inner: S) -> Self::Service {
        LatencyService::new(inner, self.admit.clone(), self.answer.clone())
    }
}
