//! Refusals as errors, for services that do not use HTTP or whose callers match on errors.

use std::{error::Error, fmt};

use super::Outcome;

/// Tower's `BoxError`.
type BoxError = Box<dyn Error + Send + Sync>;

/// An [`Outcome`] that turns a refusal into a [`LimitError`], for tower services with any response type.
///
/// ```
/// use std::time::Duration;
///
/// use tower::{Service, ServiceBuilder, ServiceExt};
/// use weir_core::{Limiter, Quota, Strategy};
/// use weir_tower::{LatencyLayer, LimitError, LimiterAdmit, MonotonicClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = MonotonicClock::start();
/// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 1, Duration::from_secs(3600), None)?);
/// let mut double = ServiceBuilder::new()
///     .layer(LatencyLayer::with_errors(LimiterAdmit::new(limiter, clock)))
///     .service_fn(async |number: u32| Ok::<_, std::io::Error>(number * 2));
///
/// assert_eq!(double.ready().await?.call(21).await?, 42);
/// match double.ready().await?.call(21).await {
///     Err(LimitError::Refused(refused)) => assert!(refused.retry_after() > Some(Duration::from_secs(3500))),
///     other => panic!("one an hour: {other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Errors;

impl<Pass, Refusal, Response, InnerError> Outcome<Pass, Refusal, Response, InnerError> for Errors {
    type Response = Response;
    type Error = LimitError<Refusal, InnerError>;

    fn refused(&self, refusal: Refusal) -> Result<Response, Self::Error> {
        Err(LimitError::Refused(refusal))
    }

    fn admitted(&self, _: Pass, response: Response) -> Response {
        response
    }

    fn failed(&self, error: InnerError) -> Self::Error {
        LimitError::Inner(error)
    }
}

/// The error of a service with a limit. [`Errors`] has an example.
///
/// Tower's own layers, such as `load_shed`, `timeout` and `buffer`, have the error `BoxError`, and require that the
/// error inside of them converts to it. So a `LimitError` converts to a boxed error, and accepts a boxed error as the
/// inner one. The box has the refusal or the inner error itself, so a caller finds both by one `downcast_ref`, through
/// any number of layers.
///
/// ```
/// use std::time::Duration;
///
/// use tower::{ServiceBuilder, ServiceExt};
/// use weir_core::{Limiter, Quota, Refused, Strategy};
/// use weir_tower::{LatencyLayer, LimiterAdmit, MonotonicClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower::BoxError> {
/// let clock = MonotonicClock::start();
/// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 1, Duration::from_secs(3600), None)?);
/// let double = ServiceBuilder::new()
///     .load_shed()
///     .layer(LatencyLayer::with_errors(LimiterAdmit::new(limiter, clock)))
///     .timeout(Duration::from_secs(1))
///     .service_fn(async |number: u32| Ok::<_, std::io::Error>(number * 2));
///
/// assert_eq!(double.clone().oneshot(21).await?, 42);
/// let error = double.oneshot(21).await.expect_err("one an hour");
/// assert!(error.downcast_ref::<Refused>().is_some());
/// # Ok(())
/// # }
/// ```
///
/// This type is not an [`Error`] itself: `BoxError` is none either, and the conversion of an [`Error`] would hide the
/// refusal in a box of this type. For the same reason, `anyhow` needs `anyhow::Error::from_boxed(error.into())`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError<R, E> {
    /// The limit refused the request; the inner service was not called, or its future was dropped.
    Refused(R),
    /// The inner service failed.
    Inner(E),
}

impl<R: fmt::Display, E: fmt::Display> fmt::Display for LimitError<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<R: Error + Send + Sync + 'static, E: Into<BoxError>> From<LimitError<R, E>> for BoxError {
    fn from(error: LimitError<R, E>) -> Self {
        match error {
            LimitError::Refused(refusal) => Box::new(refusal),
            LimitError::Inner(error) => error.into(),
        }
    }
}

/// For `?` in functions that return a `Box<dyn Error>`.
impl<R: Error + Send + Sync + 'static, E: Into<BoxError>> From<LimitError<R, E>> for Box<dyn Error> {
    fn from(error: LimitError<R, E>) -> Self {
        BoxError::from(error)
    }
}
