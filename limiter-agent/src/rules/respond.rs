//! What a client is told that gets no answer from the app: refused, or too late.
//!
//! A gRPC client gets what its library understands: a response of headers only with status 200, the code among them, and
//! the moment to retry.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use weir_core::Time;
use weir_tower::{Answer, DeadlineExceeded, GrpcAnswer};

use super::{
    decide::Refusal,
    fields::Place,
    in_force::{Limits, Rule},
};
use crate::{matching::Headers, proxy::ResponseBody};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// How an answer has to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    Http,
    Grpc,
}

impl Asking {
    pub(super) fn of(headers: Headers<'_>) -> Self {
        let grpc = headers.get(&header::CONTENT_TYPE).is_some_and(|value| value.starts_with(b"application/grpc"));
        if grpc { Self::Grpc } else { Self::Http }
    }
}

/// A refusal that is to be written in bytes of HTTP/1.1.
#[derive(Debug)]
pub(crate) enum Refused<'a> {
    /// For all but gRPC: what [`refused`] says, without a map in between.
    Http(&'a Refusal<'a>),
    /// What a gRPC client gets is rare on HTTP/1.1, and is not written twice.
    Grpc(Box<Response<ResponseBody>>),
}

/// All that the text of a refusal depends on. Whoever keeps one keeps no rule.
#[derive(Debug)]
pub(crate) struct Cause {
    /// Nothing else comes to lie at its address as long as this is here.
    rule: Weak<Rule>,
    place: Place,
    override_index: Option<usize>,
}

impl<'a> Refused<'a> {
    #[inline]
    pub(super) fn new(refusal: &'a Refusal<'a>, headers: Headers<'_>) -> Self {
        match Asking::of(headers) {
            Asking::Http => Self::Http(refusal),
            asking @ Asking::Grpc => Self::Grpc(Box::new(refused(refusal, asking))),
        }
    }
}

impl Refusal<'_> {
    pub(crate) fn cause(&self) -> Cause {
        Cause { rule: Arc::downgrade(self.rule), place: self.place, override_index: self.override_index }
    }

    #[inline]
    pub(crate) fn is_for(&self, cause: &Cause) -> bool {
        std::ptr::eq(cause.rule.as_ptr(), Arc::as_ptr(self.rule))
            && cause.place == self.place
            && cause.override_index == self.override_index
    }

    /// When it was decided.
    pub(crate) fn at(&self) -> Time {
        self.at
    }

    /// Until the client may come again. The other methods want it in digits, which it is given once for all of them.
    pub(crate) fn seconds(&self) -> u64 {
        self.place.seconds
    }

    /// The status line and all fields that are not the connection's or the body's.
    pub(crate) fn append_head(&self, seconds: &str, to: &mut Vec<u8>) {
        let Limits { refusal, advice, .. } = self.limits();
        refusal.append_head(seconds, to);
        advice.append_to(&self.place, seconds, advice.policy(self.override_index), to);
    }

    pub(crate) fn body_length(&self, seconds: &str) -> usize {
        self.limits().refusal.body_length(self.place.limit, seconds)
    }

    pub(crate) fn append_body(&self, seconds: &str, to: &mut Vec<u8>) {
        self.limits().refusal.append_body(self.place.limit, seconds, to);
    }

    pub(super) fn limits(&self) -> &Limits {
        self.rule.limits.as_ref().expect("only a rule with limits refuses")
    }
}

pub(super) fn refused(refusal: &Refusal<'_>, asking: Asking) -> Response<ResponseBody> {
    let (limits, place) = (refusal.limits(), &refusal.place);
    let mut response = match asking {
        Asking::Grpc => exhausted(refusal.retry_after),
        Asking::Http => {
            let mut response = Response::new(ResponseBody::own(limits.refusal.body(place.limit, place.seconds)));
            *response.status_mut() = limits.refusal.status;
            response.headers_mut().insert(header::CONTENT_TYPE, limits.refusal.content_type.clone());
            response
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, place.seconds.into());
    limits.advice.insert(place, limits.advice.policy(refusal.override_index), headers);
    response
}

/// `RESOURCE_EXHAUSTED`, as [`GrpcAnswer`] says it for a limit of its own; here all rules count.
fn exhausted(retry_after: Option<Duration>) -> Response<ResponseBody> {
    let (message, pushback) = match retry_after {
        Some(wait) => {
            let millis = i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
            ("over the rate limit", HeaderValue::from(millis))
        }
        // A client must not retry (gRFC A6).
        None => ("the request costs more than the burst", HeaderValue::from_static("-1")),
    };
    let mut response = Response::new(ResponseBody::own(""));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(STATUS, HeaderValue::from_static("8"));
    headers.insert(MESSAGE, HeaderValue::from_static(message));
    headers.insert(PUSHBACK, pushback);
    response
}

pub(super) fn too_late(deadline: Duration, asking: Asking) -> Response<ResponseBody> {
    match asking {
        Asking::Grpc => {
            let exceeded = DeadlineExceeded { after: deadline };
            let response: Response<()> = Answer::<(), _, _>::refused(&GrpcAnswer, exceeded);
            response.map(|()| ResponseBody::own(""))
        }
        Asking::Http => {
            let text = format!("weir-agent: no answer within the deadline of {} ms\n", deadline.as_millis());
            let mut response = Response::new(ResponseBody::own(text));
            *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
            let plain = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, plain);
            response
        }
    }
}
