//! The future of the latency layer: it never waits for a limit, only for the inner service.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::Answer;

pin_project! {
    /// What a [`LatencyService`](super::LatencyService) answers: the inner service's future, or a refusal that is ready.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct LatencyFuture<F, N, Pass, Refusal, Response> {
        #[pin]
        state: State<F, N, Pass, Response>,
        // Which `Answer` of `N` is meant.
        refusal: PhantomData<fn() -> Refusal>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = StateProjection]
    enum State<F, N, Pass, Response> {
        // The pass and who answers are taken when the inner future is done.
        Admitted { #[pin] inner: F, answer: Option<(N, Pass)> },
        // Taken by the first poll.
        Refused { response: Option<Response> },
    }
}

impl<F, N, Pass, Refusal, Response> LatencyFuture<F, N, Pass, Refusal, Response> {
    pub(super) const fn admitted(inner: F, pass: Pass, answer: N) -> Self {
        Self { state: State::Admitted { inner, answer: Some((answer, pass)) }, refusal: PhantomData }
    }

    pub(super) const fn refused(response: Response) -> Self {
        Self { state: State::Refused { response: Some(response) }, refusal: PhantomData }
    }
}

impl<F, N, Pass, Refusal, Response, Error> Future for LatencyFuture<F, N, Pass, Refusal, Response>
where
    F: Future<Output = Result<Response, Error>>,
    N: Answer<Pass, Refusal, Response>,
{
    type Output = Result<Response, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Refused { response } => {
                Poll::Ready(Ok(response.take().expect("polled again after it was ready")))
            }
            StateProjection::Admitted { inner, answer } => inner.poll(context).map_ok(|response| {
                let (answer, pass) = answer.take().expect("polled again after it was ready");
                answer.admitted(pass, response)
            }),
        }
    }
}
