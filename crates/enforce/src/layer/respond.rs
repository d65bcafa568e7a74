//! Renders the responses that do not come from the app: refused, or past the deadline. No other module renders them.
//!
//! A gRPC client gets what its library understands: status 200 with headers only, which carry the gRPC status code and
//! the time to retry.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use weir_tower::{Answer, DeadlineExceeded, GrpcAnswer};

use crate::{matching::Headers, refusal::Refusal};

/// The format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A status and a body, as the rule specifies them.
    Http,
    /// For gRPC clients.
    Grpc,
}

impl Format {
    /// The format for a request with these fields.
    pub fn of(headers: Headers<'_>) -> Self {
        let grpc = headers.get(&header::CONTENT_TYPE).is_some_and(|value| value.starts_with(b"application/grpc"));
        if grpc { Self::Grpc } else { Self::Http }
    }
}

/// The response to a refused request.
pub fn refused(refusal: &Refusal<'_>, format: Format) -> Response<Bytes> {
    let mut response = match format {
        Format::Grpc if refusal.is_denied() => GrpcAnswer::denied(),
        Format::Grpc => GrpcAnswer::rate_limited(refusal.retry_after()),
        Format::Http => {
            let mut response = Response::new(refusal.body());
            *response.status_mut() = refusal.status();
            response.headers_mut().insert(header::CONTENT_TYPE, refusal.content_type().clone());
            response
        }
    };
    let headers = response.headers_mut();
    if !refusal.is_denied() {
        headers.insert(header::RETRY_AFTER, refusal.seconds().into());
    }
    refusal.insert_fields(headers);
    response
}

/// The response to a request that exceeded its deadline.
pub(super) fn too_late(deadline: Duration, format: Format, server: &str) -> Response<Bytes> {
    match format {
        Format::Grpc => {
            let exceeded = DeadlineExceeded { after: deadline };
            Answer::<(), _, _>::refused(&GrpcAnswer, exceeded)
        }
        Format::Http => {
            let text = format!("{server}: no answer within the deadline of {} ms\n", deadline.as_millis());
            let mut response = Response::new(text.into());
            *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
            let plain = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(header::CONTENT_TYPE, plain);
            response
        }
    }
}
