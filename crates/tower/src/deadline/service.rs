//! The service: it starts the timer of each request.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use tower_service::Service;

use super::{DeadlineFuture, deadlines::Deadlines};
use crate::{Outcome, inner::inner_service};

/// Cancels a request that takes too long, and answers it.
///
/// The time starts with `call`. Before `call` there is no request, so a wait in `poll_ready` (the backpressure of a
/// [`RateLimitLayer`](crate::RateLimitLayer) inside) does not count. The time ends when the inner service returns the
/// response, before the response body is sent. If the response is ready at the deadline, the client gets the response.
/// A [`DeadlineLayer`](super::DeadlineLayer) creates this service.
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
pub struct DeadlineService<S, O, D = Duration> {
    inner: S,
    deadlines: D,
    outcome: O,
}

impl<S, O, D> DeadlineService<S, O, D> {
    pub(super) const fn new(inner: S, deadlines: D, outcome: O) -> Self {
        Self { inner, deadlines, outcome }
    }
}

inner_service!(DeadlineService<S, O, D>);

impl<S, O, D, Request> Service<Request> for DeadlineService<S, O, D>
where
    S: Service<Request>,
    D: Deadlines<S::Future>,
    O: Outcome<(), D::Refusal, S::Response, S::Error> + Clone,
{
    type Response = O::Response;
    type Error = O::Error;
    type Future = DeadlineFuture<S::Future, O, D::Refusal>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.outcome.failed(error))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let started = self.deadlines.start();
        let mut inner = self.inner.call(request);
        let deadline = D::of(started, &mut inner);
        DeadlineFuture::new(inner, deadline, self.outcome.clone())
    }
}
