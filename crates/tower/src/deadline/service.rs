//! The service: it starts the timer of each request. It never delays a request.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use tower_service::Service;

use super::DeadlineFuture;
use crate::{DeadlineExceeded, Outcome};

/// Drops and answers a request that takes too long.
///
/// The time runs from `call`. Before that there is no request, so a wait in `poll_ready` (the back-pressure of a
/// [`RateLimitLayer`](crate::RateLimitLayer) inside) does not count. A response is complete when its head is there. If
/// response and deadline come together, the response wins. Created by a [`DeadlineLayer`](super::DeadlineLayer).
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
        // The timer starts first, so that the time of the inner service's `call` counts, too.
        let deadline = tokio::time::sleep(self.after);
        DeadlineFuture::new(self.inner.call(request), deadline, self.after, self.outcome.clone())
    }
}
