//! The service: ready when the inner service is and its place has come. It never looks at a request.

use std::task::{Context, Poll, ready};

use tower_service::Service;
use weir_core::Limiter;

use super::place::Place;
use crate::MonotonicClock;

/// Is ready when the inner service is ready and the limit has a place.
///
/// The inner service comes first: while it is not ready nobody is charged. Then this service takes the next place, once,
/// and waits for its moment, behind all who asked earlier. It keeps the place however often it is polled, until it is
/// called; if it is dropped before, the place is given back. A clone starts without a place and takes its own.
///
/// What the inner service sets aside when it is ready (a permit of a concurrency limit, say) is held during the wait: put
/// such a limit outside of this one. A wait is rounded up to whole milliseconds, as tokio's timers are. Where the line of
/// the limit's strategy is bounded (that of a leaky bucket by its burst, that of a sliding window counter by the end of
/// the window), those who find it full ask again later, in no order among themselves.
///
/// Errors and responses are those of the inner service. Calling it when it is not ready panics. Made by a
/// [`RateLimitLayer`](super::RateLimitLayer).
///
/// ```
/// # use std::time::Duration;
/// use tower::{Layer, Service, ServiceExt};
/// use weir_tower::{RateLimit, RateLimitLayer};
///
/// /// Somebody else's API, which allows ten calls a second from all of us.
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
    place: Place,
}

impl<S> RateLimit<S> {
    pub(super) const fn new(inner: S, limiter: Limiter, clock: MonotonicClock) -> Self {
        Self { inner, place: Place::new(limiter, clock) }
    }
}

impl<S: Service<Request>, Request> Service<Request> for RateLimit<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // Each time: whatever breaks while we wait is heard at once.
        ready!(self.inner.poll_ready(context))?;
        self.place.poll_turn(context).map(Ok)
    }

    fn call(&mut self, request: Request) -> S::Future {
        self.place.take();
        self.inner.call(request)
    }
}
