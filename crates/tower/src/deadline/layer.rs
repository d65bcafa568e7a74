//! The layer: the deadline of requests, and the answer after it.

use std::time::Duration;

use tower_layer::Layer;

use super::{DeadlineService, OfRequests};
use crate::{Answers, Errors};

/// Limits the time of a request from its call to its response, including waits for limits inside of this layer.
///
/// At the deadline, the request's future is dropped, so that its work stops and it leaves its queue, and the client
/// gets the answer.
///
/// ```
/// use std::time::Duration;
///
/// use tower::{Service, ServiceBuilder, ServiceExt};
/// use weir_tower::{DeadlineLayer, HttpAnswer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut service = ServiceBuilder::new()
///     .layer(DeadlineLayer::new(Duration::from_millis(500), HttpAnswer))
///     .service_fn(async |request: http::Request<u64>| {
///         tokio::time::sleep(Duration::from_millis(*request.body())).await;
///         Ok::<_, std::convert::Infallible>(http::Response::new(String::from("hello")))
///     });
///
/// assert_eq!(service.ready().await?.call(http::Request::new(400)).await?.status(), 200);
/// assert_eq!(service.ready().await?.call(http::Request::new(600)).await?.status(), 504);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DeadlineLayer<O, D = Duration> {
    deadlines: D,
    outcome: O,
}

impl<N> DeadlineLayer<Answers<N>> {
    /// A layer that uses `answer`, an [`Answer`](crate::Answer), for requests that take longer than `after`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use weir_tower::{DeadlineLayer, GrpcAnswer, HttpAnswer};
    ///
    /// let for_axum = DeadlineLayer::new(Duration::from_millis(500), HttpAnswer); // 504
    /// let for_tonic = DeadlineLayer::new(Duration::from_millis(500), GrpcAnswer); // DEADLINE_EXCEEDED
    /// # let _ = (for_axum, for_tonic);
    /// ```
    pub const fn new(after: Duration, answer: N) -> Self {
        Self::with_outcome(after, Answers(answer))
    }
}

impl DeadlineLayer<Errors> {
    /// A layer that returns a [`LimitError`](crate::LimitError) of [`DeadlineExceeded`](crate::DeadlineExceeded) for
    /// requests that take longer than `after`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use weir_tower::{DeadlineLayer, LimitError};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hangs = service_fn(async |()| std::future::pending::<Result<(), std::io::Error>>().await);
    /// let service = DeadlineLayer::with_errors(Duration::from_millis(500)).layer(hangs);
    /// let Err(LimitError::Refused(exceeded)) = service.oneshot(()).await else { panic!("it hangs") };
    /// assert_eq!(exceeded.after, Duration::from_millis(500));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn with_errors(after: Duration) -> Self {
        Self::with_outcome(after, Errors)
    }
}

impl<O> DeadlineLayer<O> {
    /// A layer with your own [`Outcome`](crate::Outcome) for requests that take longer than `after`.
    /// [`ThroughputLayer::with_outcome`](crate::ThroughputLayer::with_outcome) has a complete example.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use weir_tower::{Answers, DeadlineLayer, GrpcAnswer};
    ///
    /// // Like new(Duration::from_millis(500), GrpcAnswer).
    /// let layer = DeadlineLayer::with_outcome(Duration::from_millis(500), Answers(GrpcAnswer));
    /// # let _ = layer;
    /// ```
    pub const fn with_outcome(after: Duration, outcome: O) -> Self {
        Self { deadlines: after, outcome }
    }
}

impl<N> DeadlineLayer<Answers<N>, OfRequests> {
    /// A layer around a service whose futures are [`Timed`](crate::Timed): each request has its own deadline or none.
    ///
    /// ```
    /// use std::task::{Context, Poll};
    /// use std::time::Duration;
    ///
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use weir_tower::{Answer, DeadlineLayer, QueueTicket, Reserve, ThroughputLayer, Timed, Turn};
    ///
    /// /// Admits every request immediately, with the deadline that the request contains.
    /// #[derive(Clone)]
    /// struct AsAsked;
    ///
    /// struct Limited(Option<Duration>);
    ///
    /// impl Timed for Limited {
    ///     type Exceeded = Duration;
    ///
    ///     fn take_deadline(&mut self) -> Option<(Duration, Duration)> {
    ///         self.0.take().map(|deadline| (deadline, deadline))
    ///     }
    /// }
    ///
    /// impl QueueTicket<Option<Duration>> for Limited {
    ///     type Pass = Self;
    ///     type Refusal = ();
    ///
    ///     fn poll_turn(&mut self, _: &Option<Duration>, _: &mut Context<'_>) -> Poll<Result<Self, ()>> {
    ///         Poll::Ready(Ok(Self(None)))
    ///     }
    /// }
    ///
    /// impl Reserve<Option<Duration>> for AsAsked {
    ///     type Ticket = Limited;
    ///     type Pass = Limited;
    ///     type Refusal = ();
    ///
    ///     fn reserve(&self, request: &Option<Duration>, _: Duration) -> Result<Turn<Limited, Limited>, ()> {
    ///         Ok(Turn::Now(Limited(*request)))
    ///     }
    /// }
    ///
    /// #[derive(Clone)]
    /// struct Text;
    ///
    /// impl Answer<(), Duration, String> for Text {
    ///     fn refused(&self, deadline: Duration) -> String {
    ///         format!("nothing came within {deadline:?}")
    ///     }
    /// }
    ///
    /// impl Answer<Limited, (), String> for Text {
    ///     fn refused(&self, (): ()) -> String {
    ///         String::from("too many")
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), std::convert::Infallible> {
    /// let slow = service_fn(async |_: Option<Duration>| {
    ///     tokio::time::sleep(Duration::from_secs(1)).await;
    ///     Ok::<_, std::convert::Infallible>(String::from("hello"))
    /// });
    /// let limited = ThroughputLayer::new(AsAsked, Duration::MAX, Text).layer(slow);
    /// let service = DeadlineLayer::of_requests(Text).layer(limited);
    /// assert_eq!(service.clone().oneshot(None).await?, "hello");
    /// assert_eq!(service.oneshot(Some(Duration::from_millis(500))).await?, "nothing came within 500ms");
    /// # Ok(())
    /// # }
    /// ```
    pub const fn of_requests(answer: N) -> Self {
        Self::of_requests_with_outcome(Answers(answer))
    }
}

impl<O> DeadlineLayer<O, OfRequests> {
    /// [`of_requests`](DeadlineLayer::of_requests) with your own [`Outcome`](crate::Outcome), or with
    /// [`Errors`] for a service whose responses are not answers of HTTP or gRPC.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower::{Layer, ServiceExt, service_fn};
    /// use weir_tower::{Admit, DeadlineExceeded, DeadlineLayer, Errors, LatencyLayer, LimitError, Timed};
    ///
    /// /// Admits every request, with the deadline that the request contains.
    /// #[derive(Clone)]
    /// struct AsAsked;
    ///
    /// struct Admitted(Option<Duration>);
    ///
    /// impl Timed for Admitted {
    ///     type Exceeded = DeadlineExceeded;
    ///
    ///     fn take_deadline(&mut self) -> Option<(Duration, DeadlineExceeded)> {
    ///         self.0.take().map(|after| (after, DeadlineExceeded::new(after)))
    ///     }
    /// }
    ///
    /// impl Admit<Duration> for AsAsked {
    ///     type Pass = Admitted;
    ///     type Refusal = ();
    ///
    ///     fn admit(&self, request: &Duration) -> Result<Admitted, ()> {
    ///         Ok(Admitted(Some(*request)))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let hangs = service_fn(async |_: Duration| std::future::pending::<Result<(), std::io::Error>>().await);
    /// let limited = LatencyLayer::with_errors(AsAsked).layer(hangs);
    /// let service = DeadlineLayer::of_requests_with_outcome(Errors).layer(limited);
    /// let Err(LimitError::Refused(exceeded)) = service.oneshot(Duration::from_millis(500)).await else { panic!() };
    /// assert_eq!(exceeded.after, Duration::from_millis(500));
    /// # }
    /// ```
    pub const fn of_requests_with_outcome(outcome: O) -> Self {
        Self { deadlines: OfRequests, outcome }
    }
}

impl<S, O: Clone, D: Clone> Layer<S> for DeadlineLayer<O, D> {
    type Service = DeadlineService<S, O, D>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadlineService::new(inner, self.deadlines.clone(), self.outcome.clone())
    }
}
