//! What a user of the layer says: who gets through, and what the others hear.

/// Decides on one request. Must not block: it is called on the executor.
///
/// ```
/// use weir_tower::Admit;
///
/// struct Even;
///
/// impl Admit<u32> for Even {
///     type Pass = ();
///     type Refusal = &'static str;
///
///     fn admit(&self, request: &u32) -> Result<(), &'static str> {
///         if request % 2 == 0 { Ok(()) } else { Err("odd") }
///     }
/// }
///
/// assert_eq!(Even.admit(&3), Err("odd"));
/// ```
pub trait Admit<Request> {
    /// What is known of a request that gets through.
    type Pass;
    /// Why one does not.
    type Refusal;

    /// Lets the request through or not.
    ///
    /// # Errors
    ///
    /// The refusal; the request then goes no further.
    fn admit(&self, request: &Request) -> Result<Self::Pass, Self::Refusal>;
}

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
    fn refused(&self, refusal: Refusal) -> Response;

    /// The response to a request that got through; by default just what the inner service said.
    fn admitted(&self, pass: Pass, response: Response) -> Response {
        drop(pass);
        response
    }
}
