//! The rules in force around the service that forwards: what is refused never reaches it, what has to wait is given to it
//! when its turn comes, and what takes longer than its policy's deadline is taken from it.
//!
//! A request that goes at once costs no allocation and no timer here. It must never be held up for anything but its own
//! turn, and no future here knows of any other.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::LimitedBody,
    decide::{Deadline, More, Pass},
    fields::Fields,
    gate::Gate,
    respond::{self, Asking},
};
use crate::{matching::Headers, proxy::ResponseBody};

/// Puts the limits around a service, for the requests of one client connection.
#[derive(Clone, Debug)]
pub(crate) struct LimitLayer {
    gate: Gate,
}

/// A service behind the limits. It is ready when the inner service is.
#[derive(Clone, Debug)]
pub(crate) struct Limited<S> {
    inner: S,
    gate: Gate,
}

impl LimitLayer {
    pub(crate) fn new(gate: Gate) -> Self {
        Self { gate }
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, gate: self.gate.clone() }
    }
}

impl<S, B> Service<Request<B>> for Limited<S>
where
    S: Service<Request<B>, Response = Response<ResponseBody>> + Clone + 'static,
    S::Future: 'static,
    B: 'static,
{
    type Response = Response<LimitedBody>;
    type Error = S::Error;
    type Future = LimitFuture<S::Future, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.gate.admit(&request) {
            Ok(Pass { fields, more: None }) => {
                LimitFuture::AtOnce { forward: self.inner.call(request), fields: Some(fields) }
            }
            Ok(Pass { fields, more: Some(more) }) => {
                // Readiness belongs to the instance that promised it.
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                let asking = Asking::of(Headers::Map(request.headers()));
                LimitFuture::More { steps: Box::pin(go(ready, request, *more, fields, asking, self.gate.clone())) }
            }
            Err(refused) => LimitFuture::Refused { response: Some(refused.map(LimitedBody::Plain)) },
        }
    }
}

/// Waits, forwards, and counts what the response tells, all within the deadline.
async fn go<S, B>(
    mut ready: S,
    request: Request<B>,
    more: More,
    fields: Fields,
    asking: Asking,
    gate: Gate,
) -> Result<Response<LimitedBody>, S::Error>
where
    S: Service<Request<B>, Response = Response<ResponseBody>>,
{
    let More { wait, deadline, owed } = more;
    let clock = gate.clock();
    let forward = async move {
        let fields = match wait {
            None => fields,
            Some(wait) => match wait.turn().await {
                Ok(fields) => fields,
                Err(late) => return Ok(Err(Box::new(gate.refuse_late(late, &request, asking)))),
            },
        };
        ready.call(request).await.map(|response| Ok((response, fields)))
    };
    let forwarded = match deadline {
        None => forward.await?,
        Some(Deadline { after, rule }) => match tokio::time::timeout(after, forward).await {
            Ok(forwarded) => forwarded?,
            Err(_) => {
                rule.counters.count_expired();
                return Ok(respond::too_late(after, asking).map(LimitedBody::Plain));
            }
        },
    };
    let (response, fields) = match forwarded {
        Ok(answered) => answered,
        Err(refused) => return Ok(refused.map(LimitedBody::Plain)),
    };
    let (mut head, body) = response.into_parts();
    owed.iter().for_each(|owed| owed.charge_header(&mut head.headers, clock));
    fields.write(&mut head.headers);
    let bytes = owed.into_iter().filter(super::later::Owed::is_bytes).collect();
    Ok(Response::from_parts(head, LimitedBody::new(body, bytes, clock)))
}

type Steps<E> = Pin<Box<dyn Future<Output = Result<Response<LimitedBody>, E>>>>;

pin_project! {
    /// The answer of a [`Limited`] service.
    #[project = Projection]
    pub(crate) enum LimitFuture<F, E> {
        // Taken by the first poll.
        Refused { response: Option<Response<LimitedBody>> },
        AtOnce { #[pin] forward: F, fields: Option<Fields> },
        More { steps: Steps<E> },
    }
}

impl<F, E> Future for LimitFuture<F, E>
where
    F: Future<Output = Result<Response<ResponseBody>, E>>,
{
    type Output = Result<Response<LimitedBody>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            Projection::Refused { response } => {
                Poll::Ready(Ok(response.take().expect("polled again after it was ready")))
            }
            Projection::AtOnce { forward, fields } => {
                let mut response = ready!(forward.poll(cx))?;
                fields.take().expect("polled again after it was ready").write(response.headers_mut());
                Poll::Ready(Ok(response.map(LimitedBody::Plain)))
            }
            Projection::More { steps } => steps.as_mut().poll(cx),
        }
    }
}
