//! The response of a limited service: immediate, or after the steps that some requests need.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use super::{
    body::LimitedBody,
    respond::{self, Format},
};
use crate::{
    deferred::DeferredCost,
    fields::Fields,
    follow_up::{Deadline, FollowUp},
    gate::Gate,
    matching::Headers,
    wait::Wait,
};

pin_project! {
    /// The response of a [`Limited`](super::Limited) service.
    pub struct LimitFuture<S, A, B, G>
    where
        S: Service<Request<A>>,
    {
        #[pin]
        state: State<S, A, B, G>,
    }
}

pin_project! {
    #[project = Projection]
    enum State<S, A, B, G>
    where
        S: Service<Request<A>>,
    {
        // The first poll takes it.
        Answered { response: Option<Response<LimitedBody<B>>> },
        AtOnce { #[pin] forward: S::Future, fields: Option<Fields> },
        Steps { steps: Box<Steps<S, A, G>> },
    }
}

/// What only some requests need: a wait, a deadline, costs that depend on the response.
pub(super) struct Steps<S: Service<Request<A>>, A, G> {
    step: Step<S, A>,
    deadline: Option<Deadline>,
    /// Starts at the first poll.
    expires: Option<Pin<Box<Sleep>>>,
    costs: Vec<DeferredCost>,
    format: Format,
    gate: G,
    server: &'static str,
}

enum Step<S: Service<Request<A>>, A> {
    /// Waits for its turn. Then this service gets the request.
    Wait {
        wait: Box<Wait>,
        ready: S,
        request: Request<A>,
    },
    Forward {
        forward: Pin<Box<S::Future>>,
        fields: Fields,
    },
    Done,
}

impl<S: Service<Request<A>>, A, B, G> LimitFuture<S, A, B, G> {
    pub(super) fn answer(response: Response<Bytes>) -> Self
    where
        B: From<Bytes>,
    {
        Self { state: State::Answered { response: Some(response.map(own)) } }
    }

    pub(super) fn at_once(forward: S::Future, fields: Fields) -> Self {
        Self { state: State::AtOnce { forward, fields: Some(fields) } }
    }

    pub(super) fn with(steps: Steps<S, A, G>) -> Self {
        Self { state: State::Steps { steps: Box::new(steps) } }
    }
}

impl<S, A, B, G> Future for LimitFuture<S, A, B, G>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: Body<Data = Bytes> + From<Bytes> + Unpin,
    G: Gate,
{
    type Output = Result<Response<LimitedBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projection::Answered { response } => {
                Poll::Ready(Ok(response.take().expect("polled again after it was ready")))
            }
            Projection::AtOnce { forward, fields } => {
                let mut response = ready!(forward.poll(cx))?;
                fields.take().expect("polled again after it was ready").write(response.headers_mut());
                Poll::Ready(Ok(response.map(LimitedBody::plain)))
            }
            Projection::Steps { steps } => steps.poll(cx),
        }
    }
}

impl<S: Service<Request<A>>, A, G> Steps<S, A, G> {
    pub(super) fn wait(mut wait: Box<Wait>, ready: S, request: Request<A>, gate: G, server: &'static str) -> Self {
        let FollowUp { deadline, costs } = std::mem::take(&mut wait.follow_up);
        let format = Format::of(Headers::Map(request.headers()));
        let step = Step::Wait { wait, ready, request };
        Self { step, deadline, expires: None, costs, format, gate, server }
    }

    pub(super) fn forward(
        forward: S::Future,
        fields: Fields,
        FollowUp { deadline, costs }: FollowUp,
        format: Format,
        gate: G,
        server: &'static str,
    ) -> Self {
        let step = Step::Forward { forward: Box::pin(forward), fields };
        Self { step, deadline, expires: None, costs, format, gate, server }
    }
}

impl<S, A, B, G> Steps<S, A, G>
where
    S: Service<Request<A>, Response = Response<B>>,
    B: Body<Data = Bytes> + From<Bytes> + Unpin,
    G: Gate,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<LimitedBody<B>>, S::Error>> {
        if let Poll::Ready(response) = self.poll_response(cx) {
            self.step = Step::Done;
            return Poll::Ready(response);
        }
        let Some(deadline) = &self.deadline else { return Poll::Pending };
        let after = deadline.after;
        ready!(self.expires.get_or_insert_with(|| Box::pin(tokio::time::sleep(after))).as_mut().poll(cx));
        // Dropping the step leaves the queues or cancels the call of the app.
        self.step = Step::Done;
        deadline.expire();
        Poll::Ready(Ok(respond::too_late(after, self.format, self.server).map(own)))
    }

    fn poll_response(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<LimitedBody<B>>, S::Error>> {
        loop {
            match &mut self.step {
                Step::Wait { wait, request, .. } => match ready!(wait.poll_turn(cx)) {
                    Ok(fields) => {
                        let Step::Wait { mut ready, request, .. } = std::mem::replace(&mut self.step, Step::Done)
                        else {
                            return Poll::Pending;
                        };
                        self.step = Step::Forward { forward: Box::pin(ready.call(request)), fields };
                    }
                    Err(late) => {
                        let format = self.format;
                        let response =
                            self.gate.refuse_late(late, request, |refusal| respond::refused(refusal, format));
                        return Poll::Ready(Ok(response.map(own)));
                    }
                },
                Step::Forward { forward, fields } => {
                    let response = ready!(forward.as_mut().poll(cx))?;
                    let fields = std::mem::take(fields);
                    return Poll::Ready(Ok(self.settle(response, fields)));
                }
                Step::Done => panic!("polled again after it was ready"),
            }
        }
    }

    /// Charges the costs that the response supplies, or starts to.
    fn settle(&mut self, response: Response<B>, fields: Fields) -> Response<LimitedBody<B>> {
        let clock = self.gate.options().clock;
        let (mut head, body) = response.into_parts();
        let costs = std::mem::take(&mut self.costs);
        costs.iter().for_each(|cost| cost.charge_header(&mut head.headers, clock));
        fields.write(&mut head.headers);
        let bytes = costs.into_iter().filter(DeferredCost::is_bytes).collect();
        Response::from_parts(head, LimitedBody::new(body, bytes, clock))
    }
}

/// A body that the app did not send. No limit counts it.
fn own<B: From<Bytes>>(text: Bytes) -> LimitedBody<B> {
    LimitedBody::plain(text.into())
}
