//! The service: each call passes, waits or is refused. The service keeps no list of waiting requests.

use std::{
    mem,
    task::{Context, Poll},
    time::Duration,
};

use tower_service::Service;

use super::{Reserve, ThroughputFuture, Turn};
use crate::{LatencyFuture, Outcome, inner::inner_service};

/// Passes a request to the inner service when its turn comes, or refuses it immediately.
///
/// This service is ready when the inner service is. `call` reserves the turn. If the turn is now, the inner service is
/// called immediately, without a timer or an allocation. If the turn comes later, the request takes the instance of the
/// inner service that is ready, because tower allows calls only to that instance. This service keeps a clone of it. So
/// a waiting request holds everything that the inner service acquired to become ready, such as the permit of a
/// concurrency limit. Put such a limit outside of this one, or inside as a [`LatencyLayer`](crate::LatencyLayer) over
/// an [`InFlight`](weir_core::InFlight), which takes its permits in `call`. If the request took the clone instead, it
/// would wait a second time, for an unknown time, after its turn was used.
///
/// [The crate](crate#waits) describes the order and the precision of waits. A future that is dropped during the wait
/// leaves the queue. A request is refused immediately if its turn would come too late, or if the queue of a leaky
/// bucket is full. Then the inner service stays ready for the next request. When the limit is changed, waiting requests
/// keep their order and follow the new limit. Requests that the new limit would admit too late are refused.
///
/// A [`ThroughputLayer`](super::ThroughputLayer) creates this service.
///
/// ```
/// use std::time::Duration;
///
/// use tower::Layer;
/// use weir_core::{InvalidQuota, Limiter, Quota, Strategy};
/// use weir_tower::{Errors, LimiterAdmit, MonotonicClock, ThroughputLayer, ThroughputService};
///
/// /// A pace of ten requests per second. A request that would wait longer than half a second is refused immediately.
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

inner_service!(ThroughputService<S, R, O>);

impl<S, R, O, Request> Service<Request> for ThroughputService<S, R, O>
where
    S: Service<Request> + Clone,
    R: Reserve<Request>,
    O: Outcome<R::Pass, R::Refusal, S::Response, S::Error> + Clone,
{
    type Response = O::Response;
    type Error = O::Error;
    type Future = ThroughputFuture<S, Request, R::Ticket, O>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(|error| self.outcome.failed(error))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let outcome = self.outcome.clone();
        match self.reserve.reserve(&request, self.max_wait) {
            Ok(Turn::Now(pass)) => {
                ThroughputFuture::decided(LatencyFuture::admitted(self.inner.call(request), pass, outcome))
            }
            Ok(Turn::Later(ticket)) => {
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                ThroughputFuture::waiting(ready, request, ticket, outcome)
            }
            Err(refusal) => ThroughputFuture::decided(LatencyFuture::refused(refusal, outcome)),
        }
    }
}
