//! Refusals as errors, for services that do not use HTTP or whose callers match on errors.

use std::{error::Error, fmt};

use super::Outcome;

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
/// ```
/// use weir_tower::{DeadlineExceeded, LimitError};
///
/// let error: LimitError<DeadlineExceeded, std::io::Error> = LimitError::Inner(std::io::Error::other("broken"));
/// assert_eq!(error.to_string(), "broken");
/// ```
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

/// `Display` shows the inner error, so `source` returns the source of that inner error.
impl<R: Error + 'static, E: Error + 'static> Error for LimitError<R, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(refusal) => refusal.source(),
            Self::Inner(error) => error.source(),
        }
    }
}
