//! The `RateLimit` and `RateLimit-Policy` headers of draft-ietf-httpapi-ratelimit-headers-10.
//!
//! Both headers are structured lists, so each layer appends its own line and does not change the lines of other layers.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use weir_core::{Admitted, Refused, RuleRefused, Standing, Tightest};

use super::{
    Answer,
    http::{HttpAnswer, retry_after_seconds, too_many_requests},
};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Refuses like [`HttpAnswer`], and reports the state of the limit in two headers of every response, for admitted and
/// refused requests.
///
/// `q` is the quota, `w` its window in seconds, and `r` the remaining quota. `t` is the number of seconds until the
/// whole quota is available again or, in a refusal, until a retry can succeed. For a rule with several limits, the
/// headers describe the tightest limit. A request without a key that was admitted without a check gets no headers.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// use weir_tower::{Answer, HttpAnswer};
///
/// let now = Time::from_nanos(0);
/// let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(60), None)?);
/// let answer = HttpAnswer::named(["checkout"])?;
/// let response = answer.admitted(limiter.charge(now, 1)?, http::Response::new(String::from("hello")));
/// assert_eq!(response.headers()["ratelimit-policy"], r#""checkout";q=10;w=60"#);
/// assert_eq!(response.headers()["ratelimit"], r#""checkout";r=9;t=6"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NamedHttpAnswer {
    names: Arc<[Box<str>]>,
}

impl HttpAnswer {
    /// Returns this answer with `RateLimit` headers. A single limit needs one name. A rule needs one name per limit, in
    /// order.
    ///
    /// ```
    /// use weir_tower::HttpAnswer;
    ///
    /// let of_a_rule_with_two_limits = HttpAnswer::named(["burst", "daily"]);
    /// assert!(of_a_rule_with_two_limits.is_ok());
    /// assert!(HttpAnswer::named(["a \"quoted\" name"]).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidName`] for a name that the headers cannot contain, or if there is no name.
    pub fn named<N: Into<Box<str>>>(names: impl IntoIterator<Item = N>) -> Result<NamedHttpAnswer, InvalidName> {
        let names: Arc<[Box<str>]> = names.into_iter().map(Into::into).collect();
        let plain = |byte: u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        let broken = names.iter().find(|name| name.is_empty() || !name.bytes().all(plain));
        match broken {
            Some(name) => Err(InvalidName(name.clone())),
            None if names.is_empty() => Err(InvalidName(Box::default())),
            None => Ok(NamedHttpAnswer { names }),
        }
    }
}

impl NamedHttpAnswer {
    /// Appends both headers. `limit` is the index of the limit in its rule. A limit that was added after the layer was
    /// built has no name here, and gets the first name.
    fn write(&self, headers: &mut HeaderMap, limit: usize, standing: &Standing, wait: Duration) {
        let name = self.names.get(limit).unwrap_or(&self.names[0]);
        let quota = standing.quota();
        let (q, w) = (quota.requests(), retry_after_seconds(quota.period()));
        headers.append(POLICY, value(format!("\"{name}\";q={q};w={w}")));
        let (r, t) = (standing.remaining(), wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
        headers.append(LIMIT, value(format!("\"{name}\";r={r};t={t}")));
    }

    fn refuse<B: Default>(&self, limit: usize, standing: &Standing, retry_after: Option<Duration>) -> Response<B> {
        let mut response = too_many_requests(retry_after);
        self.write(response.headers_mut(), limit, standing, retry_after.unwrap_or_else(|| standing.reset_after()));
        response
    }
}

impl<B: Default> Answer<Admitted, Refused, Response<B>> for NamedHttpAnswer {
    fn refused(&self, refusal: Refused) -> Response<B> {
        self.refuse(0, &refusal.standing, refusal.retry_after())
    }

    fn admitted(&self, pass: Admitted, mut response: Response<B>) -> Response<B> {
        self.write(response.headers_mut(), 0, &pass.standing, pass.standing.reset_after());
        response
    }
}

impl<B: Default> Answer<Option<Tightest>, RuleRefused, Response<B>> for NamedHttpAnswer {
    fn refused(&self, refusal: RuleRefused) -> Response<B> {
        self.refuse(refusal.limit, &refusal.standing, refusal.retry_after())
    }

    fn admitted(&self, pass: Option<Tightest>, mut response: Response<B>) -> Response<B> {
        if let Some(Tightest { limit, standing, .. }) = pass {
            self.write(response.headers_mut(), limit, &standing, standing.reset_after());
        }
        response
    }
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("names are checked, and all else is numbers")
}

/// The error for a name that the `RateLimit` headers cannot contain: an empty name, or a name with a quote, a backslash
/// or a character other than printable ASCII.
///
/// ```
/// use weir_tower::HttpAnswer;
///
/// assert!(HttpAnswer::named(["per client"]).is_ok());
/// let error = HttpAnswer::named(["so-called \"limit\""]).unwrap_err();
/// assert!(error.to_string().contains("printable ASCII"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidName(pub(super) Box<str>);

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.0;
        write!(f, "a limit cannot be named {name:?}: use printable ASCII without quotes and backslashes")
    }
}

impl Error for InvalidName {}
