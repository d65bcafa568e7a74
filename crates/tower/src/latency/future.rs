//! The future of the latency layer: it waits only for the inner service, never for a limit.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use crate::{Outcome, Timed};

pin_project! {
    /// The future of a [`LatencyService`](super::LatencyService): the inner service's future, or a refusal that is
    /// ready.
    ///
    /// ```
    /// use std::future::{Ready, ready};
    /// use std::num::NonZeroU64;
    ///
    /// use tower::{Layer, Service, service_fn};
    /// use weir_core::{Full, InFlight, Permit};
    /// use weir_tower::{Errors, LatencyFuture, LatencyLayer};
    ///
    /// type Answered = Ready<Result<u32, std::io::Error>>;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut double = LatencyLayer::with_errors(InFlight::new(NonZeroU64::MIN))
    ///     .layer(service_fn(|number: u32| -> Answered { ready(Ok(number * 2)) }));
    /// let future: LatencyFuture<Answered, Errors, Permit, Full> = double.call(4);
    /// assert_eq!(future.await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct LatencyFuture<F, O, Pass, Refusal> {
        #[pin]
        state: State<F, O, Pass, Refusal>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProjection]
    enum State<F, O, Pass, Refusal> {
        // The pass is dropped as soon as the inner future is done.
        Admitted { #[pin] inner: F, held: Option<(O, Pass)> },
        // The first poll takes the refusal.
        Refused { refusal: Option<(O, Refusal)> },
    }
}

impl<F, O, Pass, Refusal> LatencyFuture<F, O, Pass, Refusal> {
    pub(crate) const fn admitted(inner: F, pass: Pass, outcome: O) -> Self {
        Self { state: State::Admitted { inner, held: Some((outcome, pass)) } }
    }

    pub(crate) const fn refused(refusal: Refusal, outcome: O) -> Self {
        Self { state: State::Refused { refusal: Some((outcome, refusal)) } }
    }
}

impl<F, O, Pass: Timed, Refusal> Timed for LatencyFuture<F, O, Pass, Refusal> {
    type Exceeded = Pass::Exceeded;

    fn take_deadline(&mut self) -> Option<(Duration, Pass::Exceeded)> {
        match &mut self.state {
            State::Admitted { held, .. } => held.as_mut()?.1.take_deadline(),
            State::Refused { .. } => None,
        }
    }
}

impl<F, O, Pass, Refusal, Response, InnerError> Future for LatencyFuture<F, O, Pass, Refusal>
where
    F: Future<Output = Result<Response, InnerError>>,
    O: Outcome<Pass, Refusal, Response, InnerError>,
{
    type Output = Result<O::Response, O::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Refused { refusal } => {
                let (outcome, refusal) = refusal.take().expect("polled again after it was ready");
                Poll::Ready(outcome.refused(refusal))
            }
            StateProjection::Admitted { inner, held } => inner.poll(context).map(|result| {
                let (outcome, pass) = held.take().expect("polled again after it was ready");
                match result {
                    Ok(response) => Ok(outcome.admitted(pass, response)),
                    Err(error) => Err(outcome.failed(error)),
                }
            }),
        }
    }
}
