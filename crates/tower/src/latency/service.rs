//! The service: one decision for each call, made at once. It never holds a request back.

use std::task::{Context, Poll};

use tower_service::Service;

use super::{Admit, Answer, LatencyFuture};

/// Lets a request through to the inner service, or answers it itself, at once.
///
/// It is ready when the inner service is: a limit makes nobody wait, and a service that is not ready is not a reason to
/// charge anybody. The decision is made in `call`. A request that is refused never reaches the inner service, which
/// then stays ready: what it set aside in `poll_ready` (a permit, say) is kept for the next call or dropped with this
/// service, as tower's contract has it for a service that is ready and not called. Errors of the inner service pass
/// through unchanged. Dropping the future drops the inner one; the request stays charged, because it was let through.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// # use weir_tower::{HttpAnswer, LatencyService, LimiterAdmit, MonotonicClock};
/// let clock = MonotonicClock::start();
/// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 100, Duration::from_secs(1), None)?);
/// let inner = tower::service_fn(async |_: http::Request<()>| {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
/// });
/// let service = LatencyService::new(inner, LimiterAdmit::new(limiter, clock), HttpAnswer);
/// # let _ = service;
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct LatencyService<S, A, N> {
    inner: S,
    admit: A,
    answer: N,
}

impl<S, A, N> LatencyService<S, A, N> {
    /// Puts `admit` and `answer` around `inner`.
    pub const fn new(inner: S, admit: A, answer: N) -> Self {
        Self { inner, admit, answer }
    }
}

impl<S, A, N, Request> Service<Request> for LatencyService<S, A, N>
where
    S: Service<Request>,
    A: Admit<Request>,
    N: Answer<A::Pass, A::Refusal, S::Response> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = LatencyFuture<S::Future, N, A::Pass, A::Refusal, S::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match self.admit.admit(&request) {
            Ok(pass) => LatencyFuture::admitted(self.inner.call(request), pass, self.answer.clone()),
            Err(refusal) => LatencyFuture::refused(self.answer.refused(refusal)),
        }
    }
}
