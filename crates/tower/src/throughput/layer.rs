//! The layer: the values that all its services share.

use std::time::Duration;

use tower_layer::Layer;

use super::ThroughputService;
use crate::{Answers, Errors};

/// Decides on each request in `call`: the request waits if its turn comes within `max_wait`, and is refused immediately
/// if not.
///
/// First come, first served: requests wait in the limit's own queue, and each request is charged when it is admitted.
/// [Requests that are late for their turn](crate#waits) are the exception. When a client disconnects during the wait,
/// the requests behind it move forward. The inner service must be `Clone`. Use a
/// [`LimiterAdmit`](crate::LimiterAdmit) for one limit, and a [`KeyedAdmit`](crate::KeyedAdmit) for a limit per client.
///
/// ```
/// use std::time::Duration;
///
/// use tower::{Service, ServiceBuilder, ServiceExt};
/// use weir_core::{Limiter, Quota, Strategy};
/// use weir_tower::{HttpAnswer, LimiterAdmit, MonotonicClock, ThroughputLayer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = MonotonicClock::of_tokio();
/// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
/// let mut service = ServiceBuilder::new()
///     .layer(ThroughputLayer::new(LimiterAdmit::new(limiter, clock), Duration::from_millis(150), HttpAnswer))
///     .service_fn(async |_: http::Request<String>| {
///         Ok::<_, std::convert::Infallible>(http::Response::new(String::from("hello")))
///     });
///
/// let start = tokio::time::Instant::now();
/// let first = service.ready().await?.call(http::Request::new(String::new()));
/// let second = service.ready().await?.call(http::Request::new(String::new()));
/// let third = service.ready().await?.call(http::Request::new(String::new()));
/// assert_eq!(third.await?.status(), 429); // it would wait 200 ms
/// assert_eq!(first.await?.status(), 200);
/// assert_eq!(start.elapsed().as_millis(), 0);
/// assert_eq!(second.await?.status(), 200);
/// assert_eq!(start.elapsed().as_millis(), 100);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ThroughputLayer<R, O> {
    reserve: R,
    max_wait: Duration,
    outcome: O,
}

impl<R, N> ThroughputLayer<R, Answers<N>> {
    /// A layer that takes turns from `reserve`, a [`Reserve`](crate::Reserve), and answers with `answer`, an
    /// [`Answer`](crate::Answer). Each service of this layer gets clones of both, so clones of `reserve` should share
    /// their limits.
    ///
    /// Inside a [`DeadlineLayer`](crate::DeadlineLayer), set `max_wait` to the deadline minus the time that the service
    /// takes: a request that cannot be served by its deadline is then refused immediately.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    ///
    /// use weir_tower::{DeadlineLayer, HttpAnswer, LimiterAdmit, ThroughputLayer};
    ///
    /// let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// // Half a second in total, of which the service takes up to 300 ms.
    /// let layers = tower::ServiceBuilder::new()
    ///     .layer(DeadlineLayer::new(Duration::from_millis(500), HttpAnswer))
    ///     .layer(ThroughputLayer::new(line, Duration::from_millis(200), HttpAnswer));
    /// # let _ = layers;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new(reserve: R, max_wait: Duration, answer: N) -> Self {
        Self::with_outcome(reserve, max_wait, Answers(answer))
    }
}

impl<R> ThroughputLayer<R, Errors> {
    /// A layer that returns a [`LimitError`](crate::LimitError) for a refusal.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use weir_tower::{LimitError, LimiterAdmit, ThroughputLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    /// let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let service = ThroughputLayer::with_errors(line, Duration::from_millis(200))
    ///     .layer(service_fn(async |()| Ok::<_, std::io::Error>("hello")));
    /// assert_eq!(service.clone().oneshot(()).await?, "hello");
    /// assert!(matches!(service.oneshot(()).await, Err(LimitError::Refused(_)))); // its turn comes in a minute
    /// # Ok(())
    /// # }
    /// ```
    pub const fn with_errors(reserve: R, max_wait: Duration) -> Self {
        Self::with_outcome(reserve, max_wait, Errors)
    }
}

impl<R, O> ThroughputLayer<R, O> {
    /// A layer with your own [`Outcome`](crate::Outcome), whose response type can differ from the inner service's.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower::{Layer, ServiceExt, service_fn};
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// use weir_core::{Admitted, Refused};
    /// use weir_tower::{LimiterAdmit, Outcome, ThroughputLayer};
    ///
    /// /// Replaces the response by the number of requests that remain.
    /// #[derive(Clone)]
    /// struct Left;
    ///
    /// impl<E> Outcome<Admitted, Refused, &'static str, E> for Left {
    ///     type Response = u64;
    ///     type Error = E;
    ///
    ///     fn refused(&self, _: Refused) -> Result<u64, E> {
    ///         Ok(0)
    ///     }
    ///
    ///     fn admitted(&self, admitted: Admitted, _: &'static str) -> u64 {
    ///         admitted.standing.remaining()
    ///     }
    ///
    ///     fn failed(&self, error: E) -> E {
    ///         error
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 9, Duration::from_secs(60), None)?;
    /// let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let service = ThroughputLayer::with_outcome(line, Duration::ZERO, Left)
    ///     .layer(service_fn(async |()| Ok::<_, std::io::Error>("hello")));
    /// assert_eq!(service.oneshot(()).await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    pub const fn with_outcome(reserve: R, max_wait: Duration, outcome: O) -> Self {
        Self { reserve, max_wait, outcome }
    }
}

impl<S, R: Clone, O: Clone> Layer<S> for ThroughputLayer<R, O> {
    type Service = ThroughputService<S, R, O>;

    fn layer(&self, inner: S) -> Self::Service {
        ThroughputService::new(inner, self.reserve.clone(), self.max_wait, self.outcome.clone())
    }
}
