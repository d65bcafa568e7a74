//! The future of the throughput layer: it waits for the turn of its request, and then becomes a [`LatencyFuture`].

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::QueueTicket;
use crate::{LatencyFuture, Outcome, Timed};

pin_project! {
    /// The future of a [`ThroughputService`](super::ThroughputService): a wait and then the inner service's future, or
    /// a refusal that is ready. A future that is dropped during the wait leaves the queue.
    ///
    /// ```
    /// use tower::{Layer, Service, service_fn};
    /// use weir_tower::{LimiterAdmit, ThroughputLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    /// let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let mut service = ThroughputLayer::with_errors(line, Duration::from_secs(90))
    ///     .layer(service_fn(async |name: &'static str| Ok::<_, std::io::Error>(name.len())));
    /// let goes_now = service.call("ann");
    /// let waits = service.call("bob");
    /// assert!(service.call("cid").await.is_err()); // cid would wait two minutes
    /// drop(waits); // bob disconnected: his position is free
    /// assert_eq!(goes_now.await?, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "futures do nothing unless they are polled"]
    pub struct ThroughputFuture<S, Request, P, O>
    where
        S: Service<Request>,
        P: QueueTicket<Request>,
    {
        #[pin]
        state: State<S, Request, P, O>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, Request, P, O>
    where
        S: Service<Request>,
        P: QueueTicket<Request>,
    {
        // Boxed: most futures never wait, and should not be as large as the futures that wait.
        Waiting { held: Option<Box<Held<S, Request, P, O>>> },
        Decided { #[pin] decided: LatencyFuture<S::Future, O, P::Pass, P::Refusal> },
    }
}

/// The parts of a request that waits for its turn.
struct Held<S, Request, P, O> {
    /// The instance of the inner service that was ready.
    service: S,
    request: Request,
    ticket: P,
    outcome: O,
}

impl<S: Service<Request>, Request, P: QueueTicket<Request>, O> ThroughputFuture<S, Request, P, O> {
    pub(super) fn waiting(service: S, request: Request, ticket: P, outcome: O) -> Self {
        let held = Some(Box::new(Held { service, request, ticket, outcome }));
        Self { state: State::Waiting { held } }
    }

    pub(super) const fn decided(decided: LatencyFuture<S::Future, O, P::Pass, P::Refusal>) -> Self {
        Self { state: State::Decided { decided } }
    }
}

impl<S, Request, P, O> Timed for ThroughputFuture<S, Request, P, O>
where
    S: Service<Request>,
    P: QueueTicket<Request, Pass: Timed<Exceeded = P::Exceeded>> + Timed,
{
    type Exceeded = P::Exceeded;

    fn take_deadline(&mut self) -> Option<(Duration, P::Exceeded)> {
        match &mut self.state {
            State::Waiting { held } => held.as_mut()?.ticket.take_deadline(),
            State::Decided { decided } => decided.take_deadline(),
        }
    }
}

impl<S, Request, P, O> Future for ThroughputFuture<S, Request, P, O>
where
    S: Service<Request>,
    P: QueueTicket<Request>,
    O: Outcome<P::Pass, P::Refusal, S::Response, S::Error>,
{
    type Output = Result<O::Response, O::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let decided = match state.as_mut().project() {
                StateProjection::Decided { decided } => return decided.poll(context),
                StateProjection::Waiting { held } => {
                    let waiting = held.as_mut().expect("the wait ends once");
                    let turn = ready!(waiting.ticket.poll_turn(&waiting.request, context));
                    let Held { mut service, request, ticket, outcome } = *held.take().expect("checked above");
                    // Dropped before `call`, so that the next request in the queue need not wait for the inner service.
                    drop(ticket);
                    match turn {
                        Ok(pass) => LatencyFuture::admitted(service.call(request), pass, outcome),
                        Err(refusal) => LatencyFuture::refused(refusal, outcome),
                    }
                }
            };
            state.set(State::Decided { decided });
        }
    }
}

impl<S: Service<Request>, Request, P: QueueTicket<Request>, O> fmt::Debug for ThroughputFuture<S, Request, P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Waiting { .. } => "ThroughputFuture::Waiting",
            State::Decided { .. } => "ThroughputFuture::Decided",
        })
    }
}
