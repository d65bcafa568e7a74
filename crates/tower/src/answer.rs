//! Turns the decisions of all layers into responses or typed errors.

mod error;
mod grpc;
mod http;
mod named;
#[cfg(test)]
mod tests;

pub use self::{
    error::{Errors, LimitError},
    grpc::GrpcAnswer,
    http::{HttpAnswer, retry_after_seconds},
    named::{InvalidName, NamedHttpAnswer},
};

/// Turns decisions into responses.
///
/// ```
/// use std::time::Duration;
/// use weir_tower::Answer;
///
/// struct Text;
///
/// impl Answer<(), Duration, String> for Text {
///     fn refused(&self, retry_after: Duration) -> String {
///         format!("retry after {retry_after:?}")
///     }
/// }
///
/// assert_eq!(Text.refused(Duration::from_secs(2)), "retry after 2s");
/// assert_eq!(Text.admitted((), String::from("hello")), "hello");
/// ```
pub trait Answer<Pass, Refusal, Response> {
    /// The response to a request that was refused.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// use weir_tower::{Answer, HttpAnswer};
    ///
    /// # let now = Time::from_nanos(0);
    /// let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?);
    /// limiter.charge(now, 1)?;
    /// let refused = limiter.charge(now, 1).unwrap_err();
    /// let response: http::Response<String> = Answer::<(), _, _>::refused(&HttpAnswer, refused);
    /// assert_eq!((response.status().as_u16(), &response.headers()["retry-after"]), (429, &"60".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn refused(&self, refusal: Refusal) -> Response;

    /// The response to an admitted request; by default, the inner service's response.
    ///
    /// ```
    /// use weir_tower::Answer;
    ///
    /// struct Counted;
    ///
    /// impl Answer<u64, (), String> for Counted {
    ///     fn refused(&self, (): ()) -> String {
    ///         String::from("too many")
    ///     }
    ///
    ///     fn admitted(&self, remaining: u64, response: String) -> String {
    ///         format!("{response} ({remaining} left)")
    ///     }
    /// }
    ///
    /// assert_eq!(Counted.admitted(3, String::from("hello")), "hello (3 left)");
    /// ```
    fn admitted(&self, pass: Pass, response: Response) -> Response {
        drop(pass);
        response
    }
}

/// Converts a refusal, or a result of the inner service, to the result of a layer's service.
///
/// This crate has two implementations. With [`Answers`], a refusal is a response, and the service's error is the inner
/// service's. With [`Errors`], a refusal is a [`LimitError`]. The constructor of a layer chooses one: `new` takes an
/// [`Answer`], `with_errors` uses [`Errors`], and `with_outcome` takes your own.
///
/// ```
/// use weir_tower::{Errors, LimitError, Outcome};
///
/// let refused: Result<String, LimitError<&str, std::io::Error>> = Outcome::<(), _, _, _>::refused(&Errors, "too many");
/// assert!(matches!(refused, Err(LimitError::Refused("too many"))));
/// ```
pub trait Outcome<Pass, Refusal, Inner, InnerError> {
    /// The response type of the layer's service, which can differ from the inner service's.
    type Response;
    /// The error type of the layer's service.
    type Error;

    /// The result for a request that was refused.
    ///
    /// ```
    /// use weir_tower::{Errors, LimitError, Outcome};
    ///
    /// let refused: Result<(), LimitError<&str, std::io::Error>> = Outcome::<(), _, _, _>::refused(&Errors, "too many");
    /// assert!(matches!(refused, Err(LimitError::Refused("too many"))));
    /// ```
    ///
    /// # Errors
    ///
    /// The refusal, if it is not turned into a response.
    fn refused(&self, refusal: Refusal) -> Result<Self::Response, Self::Error>;

    /// The result for a request that was admitted.
    ///
    /// ```
    /// use weir_tower::{Errors, Outcome};
    ///
    /// // `Errors` returns the response unchanged, and drops the pass.
    /// let response = Outcome::<_, (), _, std::io::Error>::admitted(&Errors, "a permit", "hello");
    /// assert_eq!(response, "hello");
    /// ```
    fn admitted(&self, pass: Pass, response: Inner) -> Self::Response;

    /// The result for an error of the inner service.
    ///
    /// ```
    /// use weir_tower::{Errors, LimitError, Outcome};
    ///
    /// let error: LimitError<(), &str> = Outcome::<(), (), (), _>::failed(&Errors, "broken");
    /// assert!(matches!(error, LimitError::Inner("broken")));
    /// ```
    fn failed(&self, error: InnerError) -> Self::Error;
}

/// An [`Outcome`] that turns a refusal into a response. The layer's errors are the errors of the inner service.
///
/// ```
/// use weir_tower::{Answers, HttpAnswer, LatencyLayer};
///
/// fn of_http<A>(admit: A) -> LatencyLayer<A, Answers<HttpAnswer>> {
///     LatencyLayer::with_outcome(admit, Answers(HttpAnswer)) // as LatencyLayer::new(admit, HttpAnswer)
/// }
/// # let _ = of_http(());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Answers<N>(
    /// The [`Answer`] that makes the responses.
    pub N,
);

impl<N, Pass, Refusal, Response, InnerError> Outcome<Pass, Refusal, Response, InnerError> for Answers<N>
where
    N: Answer<Pass, Refusal, Response>,
{
    type Response = Response;
    type Error = InnerError;

    fn refused(&self, refusal: Refusal) -> Result<Response, InnerError> {
        Ok(self.0.refused(refusal))
    }

    fn admitted(&self, pass: Pass, response: Response) -> Response {
        self.0.admitted(pass, response)
    }

    fn failed(&self, error: InnerError) -> InnerError {
        error
    }
}
