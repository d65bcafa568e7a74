//! Applies the rules in force to a service. A refused request never reaches the service, a waiting one reaches it when
//! its turn comes, and one that exceeds its policy's deadline is cancelled. The rules may change at any moment.
//!
//! A request that passes at once costs no allocation and no timer here. A request must wait for its own turn only, and
//! no future here depends on another.

mod body;
mod future;
mod respond;

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use self::future::Steps;
use crate::{
    gate::Gate,
    matching::Headers,
    verdict::{Pass, Verdict},
    wait::Wait,
};

pub use self::{
    body::LimitedBody,
    future::LimitFuture,
    respond::{Format, refused},
};

/// Puts the limits around a service.
#[derive(Clone, Debug)]
pub struct LimitLayer<G> {
    gate: G,
    server: &'static str,
}

/// A service behind the limits. It is ready when the inner service is.
#[derive(Clone, Debug)]
pub struct Limited<S, G> {
    inner: S,
    gate: G,
    server: &'static str,
}

/// What to do with a request.
enum Next {
    Go(Pass),
    Wait(Box<Wait>),
    /// Answer it without the service.
    Answer(Box<Response<Bytes>>),
}

impl<G> LimitLayer<G> {
    /// Limits that this gate decides. `server` names the sender of the response when a deadline has passed.
    pub fn new(gate: G, server: &'static str) -> Self {
        Self { gate, server }
    }
}

impl<S, G: Clone> Layer<S> for LimitLayer<G> {
    type Service = Limited<S, G>;

    fn layer(&self, inner: S) -> Limited<S, G> {
        Limited { inner, gate: self.gate.clone(), server: self.server }
    }
}

impl<S, A, B, G> Service<Request<A>> for Limited<S, G>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
    B: Body<Data = Bytes> + From<Bytes> + Unpin,
    G: Gate + Clone,
{
    type Response = Response<LimitedBody<B>>;
    type Error = S::Error;
    type Future = LimitFuture<S, A, B, G>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let next = self.gate.decide(&request, |verdict| match verdict {
            Verdict::Pass(pass) => Next::Go(pass),
            Verdict::Wait(wait) => Next::Wait(wait),
            Verdict::Refuse(refusal) => {
                Next::Answer(Box::new(refused(&refusal, Format::of(Headers::Map(request.headers())))))
            }
        });
        match next {
            Next::Go(Pass { fields, follow_up: None }) => LimitFuture::at_once(self.inner.call(request), fields),
            Next::Go(Pass { fields, follow_up: Some(follow_up) }) => {
                let format = Format::of(Headers::Map(request.headers()));
                let forward = self.inner.call(request);
                LimitFuture::with(Steps::forward(forward, fields, *follow_up, format, self.gate.clone(), self.server))
            }
            Next::Wait(wait) => {
                // The clone is not ready: readiness belongs to the instance that was polled.
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                LimitFuture::with(Steps::wait(wait, ready, request, self.gate.clone(), self.server))
            }
            Next::Answer(response) => LimitFuture::answer(*response),
        }
    }
}
