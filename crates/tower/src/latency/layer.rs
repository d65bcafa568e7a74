//! The layer: the values that all its services share.

use tower_layer::Layer;

use super::LatencyService;
use crate::{Answers, Errors};

/// Admits or refuses each request immediately: no request waits.
///
/// Use a [`LimiterAdmit`](crate::LimiterAdmit) for one limit, a [`KeyedAdmit`](crate::KeyedAdmit) for a limit per
/// client, an [`InFlight`](weir_core::InFlight) itself for a number of requests in flight, and your own
/// [`Admit`](crate::Admit) for anything else.
///
/// ```
/// use std::num::NonZeroU64;
///
/// use tower::{Service, ServiceBuilder, ServiceExt};
/// use weir_core::InFlight;
/// use weir_tower::{HttpAnswer, LatencyLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let in_flight = InFlight::new(NonZeroU64::new(1).expect("not zero"));
/// let mut service = ServiceBuilder::new()
///     .layer(LatencyLayer::new(in_flight, HttpAnswer))
///     .service_fn(async |_: http::Request<String>| {
///         Ok::<_, std::convert::Infallible>(http::Response::new(String::from("hello")))
///     });
///
/// let first = service.ready().await?.call(http::Request::new(String::new())); // in flight
/// let second = service.ready().await?.call(http::Request::new(String::new())).await?;
/// assert_eq!(second.status(), 503);
/// assert_eq!(first.await?.status(), 200);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LatencyLayer<A, O> {
    admit: A,
    outcome: O,
}

impl<A, N> LatencyLayer<A, Answers<N>> {
    /// A layer that decides with `admit`, an [`Admit`](crate::Admit), and answers with `answer`, an
    /// [`Answer`](crate::Answer). Each service of this layer gets clones of both, so clones of `admit` should share
    /// their limits.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    ///
    /// use weir_tower::{GrpcAnswer, HttpAnswer, LatencyLayer, LimiterAdmit};
    ///
    /// let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let for_axum = LatencyLayer::new(limit.clone(), HttpAnswer); // 429
    /// let for_tonic = LatencyLayer::new(limit, GrpcAnswer); // RESOURCE_EXHAUSTED, by the same limit
    /// # let _ = (for_axum, for_tonic);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new(admit: A, answer: N) -> Self {
        Self::with_outcome(admit, Answers(answer))
    }
}

impl<A> LatencyLayer<A, Errors> {
    /// A layer that returns a [`LimitError`](crate::LimitError) for a refusal.
    ///
    /// ```
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use weir_tower::{LatencyLayer, LimitError, LimiterAdmit};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    /// let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let service = LatencyLayer::with_errors(limit).layer(service_fn(async |()| Ok::<_, std::io::Error>("hello")));
    /// assert_eq!(service.clone().oneshot(()).await?, "hello");
    /// let Err(LimitError::Refused(refused)) = service.oneshot(()).await else { panic!("one a minute") };
    /// assert!(refused.retry_after() <= Some(Duration::from_secs(60)));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn with_errors(admit: A) -> Self {
        Self::with_outcome(admit, Errors)
    }
}

impl<A, O> LatencyLayer<A, O> {
    /// A layer with your own [`Outcome`](crate::Outcome), whose response type can differ from the inner service's.
    /// [`ThroughputLayer::with_outcome`](crate::ThroughputLayer::with_outcome) has a complete example.
    ///
    /// ```
    /// use weir_tower::{Answers, Errors, HttpAnswer, LatencyLayer};
    ///
    /// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::MIN);
    /// let errors = LatencyLayer::with_outcome(in_flight.clone(), Errors); // like with_errors(in_flight)
    /// let answers = LatencyLayer::with_outcome(in_flight, Answers(HttpAnswer)); // like new(in_flight, HttpAnswer)
    /// # let _ = (errors, answers);
    /// ```
    pub const fn with_outcome(admit: A, outcome: O) -> Self {
        Self { admit, outcome }
    }
}

impl<S, A: Clone, O: Clone> Layer<S> for LatencyLayer<A, O> {
    type Service = LatencyService<S, A, O>;

    fn layer(&self, inner: S) -> Self::Service {
        LatencyService::new(inner, self.admit.clone(), self.outcome.clone())
    }
}
