//! The service: each call is given its turn at once. It never keeps a list of those who wait.

use std::mem;
use std::task::{Context, Poll};
use std::time::Duration;

use tower_service::Service;

use super::{Place, Reserve, ThroughputFuture, Turn};
use crate::{LatencyFuture, Outcome};

/// Lets a request through to the inner service when its turn comes, or answers it itself, at once.
///
/// It is ready when the inner service is. `call` takes the turn. If that is now, the inner service is called at once: no
/// timer, no allocation. If it comes later, the inner service that was made ready goes with the request and is called
/// then, because readiness belongs to the instance that promised it; a clone of it takes its place here. So whatever the
/// inner service sets aside when it is ready, such as the permit of a concurrency limit, is held by a request that waits:
/// put such a limit outside of this one, or inside as a [`LatencyLayer`](crate::LatencyLayer) over an
/// [`InFlight`](weir_core::InFlight), which takes its permits in `call`. Making the clone ready after the wait instead
/// would be a second wait, of unknown length, after the turn was used.
///
/// A wait takes one allocation, and is rounded up to whole milliseconds, as tokio's timers are. Dropping the future during
/// the wait gives the place back. A request whose turn comes too late is refused at once, and the inner service then stays
/// ready for the next. When the limit is changed, those who wait keep the moment that they were promised.
///
/// Made by a [`ThroughputLayer`](super::ThroughputLayer).
///
/// ```
/// use std::time::Duration;
///
/// use tower::Layer;
/// use weir_core::{InvalidQuota, Limiter, Quota, Strategy};
/// use weir_tower::{Errors, LimiterAdmit, MonotonicClock, ThroughputLayer, ThroughputService};
///
/// /// Goes in the pace of ten a second; who would wait longer than half a second hears so.
/// fn paced<S>(inner: S) -> Result<ThroughputService<S, LimiterAdmit, Errors>, InvalidQuota> {
///     let clock = MonotonicClock::start();
///     let quota = Quota::new(Strategy::LeakyBucket, 10, Duration::from_secs(1), None)?;
///     let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
///     Ok(ThroughputLayer::with_errors(line, Duration::from_millis(500)).layer(inner))
/// }
/// # let _ = paced(())?;
/// # Ok::<(), InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct ThroughputService<S, R, O> {
    inner: S,
    reserve: R,
    max_wait: Duration,
    outcome: O,
}

impl<S, R, O> ThroughputService<S, R, O> {
    pub(super) const fn new(inner: S, reserve: R, max_wait: Duration, outcome: O) -> Self {
        Self { inner, reserve, max_wait, outcome }
    }
}

impl<S, R, O, Request> Service<Request> for ThroughputService<S, R, O>
where
    S: Service<Request> + Clone,
    R: Reserve<Request>,
    O: Outcome<<R::Place as Place>::Pass, R::Refusal, S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = O::Error;
    type Future = ThroughputFuture<S, Request, R::Place, O, R::Refusal>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.outcome.failed(error))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let outcome = self.outcome.clone();
        match self.reserve.reserve(&request, self.max_wait) {
            Ok(Turn::Now(pass)) => {
                ThroughputFuture::decided(LatencyFuture::admitted(self.inner.call(request), pass, outcome))
            }
            Ok(Turn::Later(place)) => {
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                ThroughputFuture::waiting(ready, request, place, outcome)
            }
            Err(refusal) => ThroughputFuture::decided(LatencyFuture::refused(refusal, outcome)),
        }
    }
}
