//! The service: it starts the clock of each request. It never holds one back.

use std::task::{Context, Poll};
use std::time::Duration;

use tower_service::Service;

use super::{DeadlineExceeded, DeadlineFuture};
use crate::Outcome;

/// Drops and answers a request that takes too long.
///
/// The time runs from `call`; before that there is no request, so a wait of `poll_ready` (the back-pressure of a
/// [`RateLimitLayer`](crate::RateLimitLayer) inside) is not in it. A response counts as given when its head is there. If
/// response and deadline come together the response wins. Made by a [`DeadlineLayer`](super::DeadlineLayer).
///
/// ```
/// use std::time::Duration;
///
/// use tower::Layer;
/// use weir_tower::{DeadlineLayer, DeadlineService, Errors};
///
/// fn patient<S>(inner: S) -> DeadlineService<S, Errors> {
///     DeadlineLayer::with_errors(Duration::from_secs(30)).layer(inner)
/// }
/// # let _ = patient(());
/// ```
#[derive(Clone, Debug)]
pub struct DeadlineService<S, O> {
    inner: S,
    after: Duration,
    outcome: O,
}

impl<S, O> DeadlineService<S, O> {
    pub(super) const fn new(inner: S, after: Duration, outcome: O) -> Self {
        Self { inner, after, outcome }
    }
}

impl<S, O, Request> Service<Request> for DeadlineService<S, O>
where
    S: Service<Request>,
    O: Outcome<(), DeadlineExceeded, S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = O::Error;
    type Future = DeadlineFuture<S::Future, O>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.outcome.failed(error))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // The timer first: what the inner service does in `call` is in the time too.
        let deadline = tokio::time::sleep(self.after);
        DeadlineFuture::new(self.inner.call(request), deadline, self.after, self.outcome.clone())
    }
}
