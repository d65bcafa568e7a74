//! Refusals in gRPC: a response that has only headers, and the gRPC status in one of them.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, header::CONTENT_TYPE};
use weir_core::{Full, Refused, RuleRefused};

use super::Answer;
use crate::DeadlineExceeded;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// The time until the client may retry, in milliseconds; negative if the client must not retry (gRFC A6).
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Refuses with gRPC status codes, and does not change responses of admitted requests.
///
/// | reason | status |
/// |---|---|
/// | a rate limit | `RESOURCE_EXHAUSTED`, with `grpc-retry-pushback-ms` for the client's retry policy |
/// | too many in flight | `UNAVAILABLE` |
/// | the deadline | `DEADLINE_EXCEEDED` |
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// use weir_tower::{Answer, GrpcAnswer};
///
/// let now = Time::from_nanos(0);
/// let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 2, Duration::from_secs(3), None)?);
/// limiter.charge(now, 1)?;
/// let refused = limiter.charge(now, 1).unwrap_err();
/// let response: http::Response<String> = Answer::<(), _, _>::refused(&GrpcAnswer, refused);
/// assert_eq!(response.status(), 200);
/// assert_eq!(response.headers()["grpc-status"], "8");
/// assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1500");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GrpcAnswer;

/// The gRPC status codes of refusals.
enum Code {
    DeadlineExceeded = 4,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unavailable = 14,
}

impl<Pass, B: Default> Answer<Pass, Refused, Response<B>> for GrpcAnswer {
    fn refused(&self, refusal: Refused) -> Response<B> {
        Self::rate_limited(refusal.retry_after())
    }
}

impl<Pass, B: Default> Answer<Pass, RuleRefused, Response<B>> for GrpcAnswer {
    fn refused(&self, refusal: RuleRefused) -> Response<B> {
        Self::rate_limited(refusal.retry_after())
    }
}

impl<Pass, B: Default> Answer<Pass, Full, Response<B>> for GrpcAnswer {
    fn refused(&self, _: Full) -> Response<B> {
        status(Code::Unavailable, "too many requests in flight")
    }
}

impl<Pass, B: Default> Answer<Pass, DeadlineExceeded, Response<B>> for GrpcAnswer {
    fn refused(&self, _: DeadlineExceeded) -> Response<B> {
        status(Code::DeadlineExceeded, "deadline exceeded")
    }
}

impl GrpcAnswer {
    /// `PERMISSION_DENIED`: the client must not try again.
    ///
    /// ```
    /// use weir_tower::GrpcAnswer;
    ///
    /// let response: http::Response<String> = GrpcAnswer::denied();
    /// assert_eq!(response.headers()["grpc-status"], "7");
    /// ```
    #[must_use]
    pub fn denied<B: Default>() -> Response<B> {
        status(Code::PermissionDenied, "denied")
    }

    /// `RESOURCE_EXHAUSTED`: the client may try again after this time. `None` means never, because the request costs
    /// more than the burst.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use weir_tower::GrpcAnswer;
    ///
    /// let response: http::Response<String> = GrpcAnswer::rate_limited(Some(Duration::from_millis(1500)));
    /// assert_eq!(response.headers()["grpc-retry-pushback-ms"], "1500");
    /// ```
    #[must_use]
    pub fn rate_limited<B: Default>(retry_after: Option<Duration>) -> Response<B> {
        let (pushback, message) = match retry_after {
            Some(wait) => (HeaderValue::from(pushback_millis(wait)), "over the rate limit"),
            None => (HeaderValue::from_static("-1"), "the request costs more than the burst"),
        };
        let mut response = status(Code::ResourceExhausted, message);
        response.headers_mut().insert(PUSHBACK, pushback);
        response
    }
}

/// A wait in milliseconds, rounded up so that a client that waits this long is admitted. Clients parse a signed 32-bit
/// number, so a wait of more than 24 days becomes 24 days.
fn pushback_millis(wait: Duration) -> i32 {
    i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
}

fn status<B: Default>(code: Code, message: &'static str) -> Response<B> {
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from(code as u16));
    headers.insert(MESSAGE, HeaderValue::from_static(message));
    response
}
