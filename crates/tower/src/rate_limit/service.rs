//! The service: ready when the inner service is ready and its turn has come. It never reads a request.

use std::task::{Context, Poll, ready};

use tower_service::Service;
use weir_core::Limiter;

use super::readiness::Readiness;
use crate::MonotonicClock;

/// Ready when the inner service is ready and the limit has room.
///
/// The inner service comes first: while it is not ready, nothing is charged. Then this service joins the queue, once,
/// and waits for its turn behind all earlier callers. It keeps its turn, however often it is polled, until it is
/// called; if it is dropped before, the charge is given back. A clone has no turn and waits for its own.
///
/// What the inner service acquires when it is ready (a permit of a concurrency limit, for example) is held during the
/// wait: put such a limit outside of this one. Waits are rounded up to whole milliseconds, like tokio's timers. If the
/// queue of the limit's strategy is bounded (of a leaky bucket by its burst, of a sliding window counter by the end of
/// the window), callers that find it full ask again later, in no particular order.
///
/// Errors and responses are those of the inner service. Calling it when it is not ready panics. Created by a
/// [`RateLimitLayer`](super::RateLimitLayer).
///
/// ```
/// # use std::time::Duration;
/// use tower::{Layer, Service, ServiceExt};
/// use weir_tower::{RateLimit, RateLimitLayer};
///
/// /// A third party's API, which allows ten calls per second from all of us.
/// #[derive(Clone)]
/// struct Client<S> {
///     api: RateLimit<S>,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let api = tower::service_fn(async |name: &'static str| Ok::<_, std::io::Error>(name.len()));
/// let mut client = Client { api: RateLimitLayer::per(10, Duration::from_secs(1))?.layer(api) };
/// let mut another = client.clone(); // of the same limit
/// assert_eq!(client.api.ready().await?.call("ann").await?, 3);
/// assert_eq!(another.api.ready().await?.call("bob").await?, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    readiness: Readiness,
}

impl<S> RateLimit<S> {
    pub(super) const fn new(inner: S, limiter: Limiter, clock: MonotonicClock) -> Self {
        Self { inner, readiness: Readiness::new(limiter, clock) }
    }
}

impl<S: Service<Request>, Request> Service<Request> for RateLimit<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // Checked each time, so that an error during the wait is returned at once.
        ready!(self.inner.poll_ready(context))?;
        self.readiness.poll_turn(context).map(Ok)
    }

    fn call(&mut self, request: Request) -> S::Future {
        self.readiness.take();
        self.inner.call(request)
    }
}
