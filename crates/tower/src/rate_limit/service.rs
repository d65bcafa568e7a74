//! The service: ready when the inner service is ready and the turn of this service has come.

use std::task::{Context, Poll, ready};

use tower_service::Service;
use weir_core::Limiter;

use super::readiness::Readiness;
use crate::{MonotonicClock, inner::inner_service};

/// A service that is ready when the inner service is ready and the limit has room.
///
/// `poll_ready` polls the inner service first: while the inner service is not ready, nothing is charged. Then this
/// service joins the queue once and waits for its turn behind all earlier callers. The service keeps its turn until it
/// is called, even if it is polled again. If the service is dropped without a call, the charge is given back as far as
/// [`Limiter::refund`] can: a retune, the end of a window, or a later charge of a sliding window log keeps it. A clone
/// has no turn: it waits for a separate one.
///
/// Others overtake a service if the limit has room for all of them, or if the service is not polled within 2 ms of its
/// turn. It keeps its position, and is first again at its next poll.
///
/// So **drop a service that you do not poll again** after [`Poll::Pending`]. `load_shed` and `timeout(service.ready())`
/// often keep such services. Each of them keeps its position: later callers wait for it once, 2 ms at most for up to 64
/// of them together, unless the limit has room for all. With `load_shed`, requests of these 2 ms are shed. As long as
/// one of them exists, each later caller takes the lock of the queue. A [`LatencyLayer`](crate::LatencyLayer) sheds
/// without a queue.
///
/// The limit counts a request when its service becomes ready, and a service can stay ready for any time. Services that are
/// ready can then be called at the same time, all of them. So put this layer outside of a `Balance`, which keeps all of
/// its services ready, and call `ready` immediately before `call`.
///
/// During the wait, the inner service holds everything that it acquired to become ready, such as the permit of a
/// concurrency limit: put such a limit outside of this one. The queue has no bound. [The crate](crate#waits) describes
/// how exact the waits are.
///
/// Errors and responses are those of the inner service. A call to a service that is not ready panics. A
/// [`RateLimitLayer`](super::RateLimitLayer) creates this service.
///
/// ```
/// # use std::time::Duration;
/// use tower::{Layer, Service, ServiceExt};
/// use weir_tower::{RateLimit, RateLimitLayer};
///
/// /// A client of a third party's API, which allows us ten calls per second in total.
/// #[derive(Clone)]
/// struct Client<S> {
///     api: RateLimit<S>,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let api = tower::service_fn(async |name: &'static str| Ok::<_, std::io::Error>(name.len()));
/// let mut client = Client { api: RateLimitLayer::per(10, Duration::from_secs(1))?.layer(api) };
/// let mut another = client.clone(); // shares the limit
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

inner_service!(RateLimit<S>);

impl<S: Service<Request>, Request> Service<Request> for RateLimit<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // The inner service is polled each time, so that its error during the wait is returned immediately.
        ready!(self.inner.poll_ready(context))?;
        self.readiness.poll_turn(context).map(Ok)
    }

    fn call(&mut self, request: Request) -> S::Future {
        self.readiness.take();
        self.inner.call(request)
    }
}
