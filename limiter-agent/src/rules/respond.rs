//! What a client is told that gets no answer from the app: refused, or too late.
//!
//! A gRPC client gets what its library understands: a response of headers only with status 200, the code among them, and
//! the moment to retry.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use weir_tower::{Answer, DeadlineExceeded, GrpcAnswer};

use super::decide::Refusal;
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

pub(super) fn refused(refusal: Refusal, asking: Asking) -> Response<ResponseBody> {
    let Refusal { rule, place, override_index, retry_after } = refusal;
    let limits = rule.limits.as_ref().expect("only a rule with limits refuses");
    let mut response = match asking {
        Asking::Grpc => exhausted(retry_after),
        Asking::Http => {
            let mut response = Response::new(ResponseBody::own(limits.refusal.body(place.limit, place.seconds)));
            *response.status_mut() = limits.refusal.status;
            response.headers_mut().insert(header::CONTENT_TYPE, limits.refusal.content_type.clone());
            response
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, place.seconds.into());
    limits.advice.fields(&place, limits.advice.policy(override_index).clone()).write(headers);
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
