//! The layer: how long a request may take, and the answer if it takes longer.

use std::time::Duration;

use tower_layer::Layer;

use super::DeadlineService;
use crate::{Answers, Errors};

/// Bounds the time of a request from its call to its response, including waits for limits inside of this layer.
///
/// After the deadline, the request's future is dropped, which gives back its position in a queue and stops the work,
/// and the request is answered.
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
pub struct DeadlineLayer<O> {
    after: Duration,
    outcome: O,
}

impl<N> DeadlineLayer<Answers<N>> {
    /// A layer that answers requests that take longer than `after` with `answer`, an [`Answer`](crate::Answer).
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
        Self { after, outcome: Answers(answer) }
    }
}

impl DeadlineLayer<Errors> {
    /// Like [`new`](Self::new), but the answer is a [`LimitError`](crate::LimitError) of
    /// [`DeadlineExceeded`](crate::DeadlineExceeded).
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
        Self { after, outcome: Errors }
    }
}

impl<S, O: Clone> Layer<S> for DeadlineLayer<O> {
    type Service = DeadlineService<S, O>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadlineService::new(inner, self.after, self.outcome.clone())
    }
}
