//! Refusals as HTTP responses.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};
use weir_core::Refused;

use crate::Answer;

/// Refuses with 429 (RFC 6585), `Retry-After` (RFC 9110, section 10.2.3) and an empty body. A request that can never be
/// admitted, because it costs more than the burst, is told no time.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// use weir_tower::{Answer, HttpAnswer};
///
/// let now = Time::from_nanos(0);
/// let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 2, Duration::from_secs(3), None)?);
/// let admitted = limiter.check(now, 1)?;
/// let refused = limiter.check(now, 1).unwrap_err();
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
        let mut response = Response::new(B::default());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        if let Some(wait) = refusal.retry_after() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after_seconds(wait)));
        }
        response
    }
}

/// A wait as `Retry-After` has it: whole seconds, rounded up so that whoever obeys is admitted, and at least one.
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
