//! The future of the deadline layer: the inner future or the timer, whichever is ready first.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::{task::coop::unconstrained, time::Sleep};

use crate::{DeadlineExceeded, Outcome};

pin_project! {
    /// The future of a [`DeadlineService`](super::DeadlineService): the inner future until the deadline.
    ///
    /// ```
    /// use std::future::{Ready, ready};
    /// use std::time::Duration;
    ///
    /// use tower::{Layer, Service, service_fn};
    /// use weir_tower::{DeadlineFuture, DeadlineLayer, Errors};
    ///
    /// type Answered = Ready<Result<u32, std::io::Error>>;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut double = DeadlineLayer::with_errors(Duration::from_secs(1))
    ///     .layer(service_fn(|number: u32| -> Answered { ready(Ok(number * 2)) }));
    /// let future: DeadlineFuture<Answered, Errors> = double.call(4);
    /// assert_eq!(future.await?, 8);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct DeadlineFuture<F, O, Refusal = DeadlineExceeded> {
        #[pin]
        state: State<F>,
        // The first poll after the deadline takes the refusal.
        refusal: Option<Refusal>,
        outcome: O,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProjection]
    enum State<F> {
        // The timer is registered only if the inner future is pending, so its cost is negligible for a request that is
        // answered immediately.
        Running { #[pin] inner: F, #[pin] deadline: Option<Sleep> },
        Done,
    }
}

impl<F, O, Refusal> DeadlineFuture<F, O, Refusal> {
    pub(super) fn new(inner: F, deadline: Option<(Sleep, Refusal)>, outcome: O) -> Self {
        let (deadline, refusal) = deadline.unzip();
        Self { state: State::Running { inner, deadline }, refusal, outcome }
    }
}

impl<F, O, Refusal, Response, InnerError> Future for DeadlineFuture<F, O, Refusal>
where
    F: Future<Output = Result<Response, InnerError>>,
    O: Outcome<(), Refusal, Response, InnerError>,
{
    type Output = Result<O::Response, O::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let StateProjection::Running { inner, deadline } = this.state.as_mut().project() else {
            panic!("polled again after it was ready");
        };
        let result = match inner.poll(context) {
            Poll::Ready(Ok(response)) => Ok(this.outcome.admitted((), response)),
            Poll::Ready(Err(error)) => Err(this.outcome.failed(error)),
            Poll::Pending => {
                let Some(deadline) = deadline.as_pin_mut() else { return Poll::Pending };
                // An inner future whose source is always ready uses up the task's budget in each poll. The timer must
                // not need a part of it.
                ready!(pin!(unconstrained(deadline)).poll(context));
                this.outcome.refused(this.refusal.take().expect("every deadline has a refusal"))
            }
        };
        // Drops the inner future, and all that it holds, before the answer is returned.
        this.state.set(State::Done);
        Poll::Ready(result)
    }
}
