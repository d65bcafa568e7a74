//! Refusals as HTTP responses.

use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header::RETRY_AFTER};
use weir_core::{Full, Refused, RuleRefused};

use super::Answer;
use crate::DeadlineExceeded;

/// Refuses with an empty body, and does not change responses of admitted requests.
///
/// | reason | status |
/// |---|---|
/// | a rate limit | 429 (RFC 6585) and `Retry-After` (RFC 9110, section 10.2.3) in whole seconds, rounded up |
/// | too many in flight | 503, because the service is busy, and this client did not send too many requests |
/// | the deadline | 504 |
///
/// A request that can never be admitted, because it costs more than the burst, gets no `Retry-After`. To send the
/// `RateLimit` headers with every response, give the limit a name: [`named`](Self::named).
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// use weir_tower::{Answer, HttpAnswer};
///
/// let now = Time::from_nanos(0);
/// let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 2, Duration::from_secs(3), None)?);
/// let admitted = limiter.charge(now, 1)?;
/// let refused = limiter.charge(now, 1).unwrap_err();
/// # let _ = admitted;
/// let response: http::Response<String> = Answer::<(), _, _>::refused(&HttpAnswer, refused);
/// assert_eq!(response.status(), 429);
/// assert_eq!(response.headers()["retry-after"], "2"); // 1.5 s, rounded up
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpAnswer;

impl<Pass, B: Default> Answer<Pass, Refused, Response<B>> for HttpAnswer {
    fn refused(&self, refusal: Refused) -> Response<B> {
        too_many_requests(refusal.retry_after())
    }
}

impl<Pass, B: Default> Answer<Pass, RuleRefused, Response<B>> for HttpAnswer {
    fn refused(&self, refusal: RuleRefused) -> Response<B> {
        too_many_requests(refusal.retry_after())
    }
}

impl<Pass, B: Default> Answer<Pass, Full, Response<B>> for HttpAnswer {
    fn refused(&self, _: Full) -> Response<B> {
        empty(StatusCode::SERVICE_UNAVAILABLE)
    }
}

impl<Pass, B: Default> Answer<Pass, DeadlineExceeded, Response<B>> for HttpAnswer {
    fn refused(&self, _: DeadlineExceeded) -> Response<B> {
        empty(StatusCode::GATEWAY_TIMEOUT)
    }
}

/// A refusal; `retry_after` is none if a retry can never succeed.
pub(super) fn too_many_requests<B: Default>(retry_after: Option<Duration>) -> Response<B> {
    let mut response = empty(StatusCode::TOO_MANY_REQUESTS);
    if let Some(wait) = retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after_seconds(wait)));
    }
    response
}

fn empty<B: Default>(status: StatusCode) -> Response<B> {
    let mut response = Response::new(B::default());
    *response.status_mut() = status;
    response
}

/// A wait as the value of `Retry-After`: whole seconds, at least one, rounded up so that a client that waits this long
/// is admitted.
///
/// ```
/// use std::time::Duration;
/// use weir_tower::retry_after_seconds;
///
/// assert_eq!(retry_after_seconds(Duration::from_millis(2000)), 2);
/// assert_eq!(retry_after_seconds(Duration::from_millis(2001)), 3);
/// assert_eq!(retry_after_seconds(Duration::ZERO), 1);
/// ```
pub const fn retry_after_seconds(wait: Duration) -> u64 {
    let seconds = wait.as_secs().saturating_add((wait.subsec_nanos() > 0) as u64);
    if seconds == 0 { 1 } else { seconds }
}
