//! The service: each call is decided immediately, without a delay.

use std::task::{Context, Poll};

use tower_service::Service;

use super::{Admit, LatencyFuture};
use crate::{Outcome, inner::inner_service};

/// Passes a request to the inner service, or refuses it immediately.
///
/// This service is ready when the inner service is: the limit makes no caller wait, and nothing is charged while the
/// inner service is not ready. `call` makes the decision. A refused request never reaches the inner service, which then
/// stays ready. Everything that the inner service acquired in `poll_ready`, such as a permit, is kept for the next call
/// or dropped with this service, as tower's contract requires. Errors of the inner service pass through unchanged. If
/// the future is dropped, the inner future is dropped with it. The request stays charged, because it was admitted.
///
/// A [`LatencyLayer`](super::LatencyLayer) creates this service.
///
/// ```
/// use std::num::NonZeroU64;
///
/// use tower::Layer;
/// use weir_core::InFlight;
/// use weir_tower::{Answers, HttpAnswer, LatencyLayer, LatencyService};
///
/// struct Server<S> {
///     routes: LatencyService<S, InFlight, Answers<HttpAnswer>>,
/// }
///
/// impl<S> Server<S> {
///     fn new(routes: S) -> Self {
///         let in_flight = InFlight::new(NonZeroU64::new(100).expect("not zero"));
///         Self { routes: LatencyLayer::new(in_flight, HttpAnswer).layer(routes) }
///     }
/// }
/// # let _ = Server::new(()).routes;
/// ```
#[derive(Clone, Debug)]
pub struct LatencyService<S, A, O> {
    inner: S,
    admit: A,
    outcome: O,
}

impl<S, A, O> LatencyService<S, A, O> {
    pub(super) const fn new(inner: S, admit: A, outcome: O) -> Self {
        Self { inner, admit, outcome }
    }
}

inner_service!(LatencyService<S, A, O>);

impl<S, A, O, Request> Service<Request> for LatencyService<S, A, O>
where
    S: Service<Request>,
    A: Admit<Request>,
    O: Outcome<A::Pass, A::Refusal, S::Response, S::Error> + Clone,
{
    type Response = O::Response;
    type Error = O::Error;
    type Future = LatencyFuture<S::Future, O, A::Pass, A::Refusal>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.outcome.failed(error))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let outcome = self.outcome.clone();
        match self.admit.admit(&request) {
            Ok(pass) => LatencyFuture::admitted(self.inner.call(request), pass, outcome),
            Err(refusal) => LatencyFuture::refused(refusal, outcome),
        }
    }
}
