//! The responses that clients get. The service's response gets the headers of the rules, and its costs are charged. For
//! a request that was refused or exceeded its deadline, this module creates the response.
//!
//! A gRPC client gets status 200 with headers only, which contain the gRPC status code and the time to retry.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Body;
use weir_tower::{Answer, DeadlineExceeded, GrpcAnswer, MonotonicClock, Outcome};

use super::body::LimitedBody;
use crate::{
    decide::{
        deferred::DeferredCost,
        follow_up::{Deadline, FollowUp, HeldPermit},
        refusal::Refusal,
        verdict::Pass,
    },
    format::Format,
};

/// Creates the responses of a service behind the limits.
#[derive(Clone, Copy, Debug)]
pub struct Responses {
    pub(super) clock: MonotonicClock,
    /// The name of this program in responses to requests that exceeded their deadline.
    pub(super) server: &'static str,
}

/// An upgraded connection, such as that of a WebSocket, which outlives the response that opens it. A service adds a clone
/// to the extensions of its response with status 101, and drops its own when the connection has ended. Until then the
/// connection holds the permits of the request, so that limits on concurrent requests count it.
#[derive(Clone, Debug, Default)]
pub struct Tunnel(Arc<Mutex<Vec<HeldPermit>>>);

impl Tunnel {
    fn keep_permits(&self, permits: Vec<HeldPermit>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(permits);
    }
}

impl<B: Body<Data = Bytes>, E> Outcome<Pass, Box<Response<Bytes>>, Response<B>, E> for Responses {
    type Response = Response<LimitedBody<B>>;
    type Error = E;

    fn refused(&self, refused: Box<Response<Bytes>>) -> Result<Self::Response, E> {
        Ok(refused.map(LimitedBody::own))
    }

    /// Charges the costs in headers, and wraps the body: the wrapper charges the bytes while they pass.
    fn admitted(&self, Pass { fields, follow_up }: Pass, mut response: Response<B>) -> Self::Response {
        let FollowUp { mut costs, permits, .. } = follow_up.map(|follow_up| *follow_up).unwrap_or_default();
        DeferredCost::charge_headers(&costs, response.headers_mut(), self.clock);
        fields.write(response.headers_mut());
        // The bytes of a tunnel are not the body of its response.
        let permits = match response.extensions().get::<Tunnel>() {
            Some(tunnel) => {
                tunnel.keep_permits(permits);
                Vec::new()
            }
            None => permits,
        };
        costs.retain(DeferredCost::is_response_bytes);
        response.map(|body| LimitedBody::new(body, costs, permits, self.clock))
    }

    fn failed(&self, error: E) -> E {
        error
    }
}

impl<B> Answer<(), Deadline, Response<LimitedBody<B>>> for Responses {
    fn refused(&self, deadline: Deadline) -> Response<LimitedBody<B>> {
        too_late(&deadline, self.server).map(LimitedBody::own)
    }
}

/// Returns the response to a request whose path programs read in different ways. `server` names this program.
pub(super) fn ambiguous(server: &str) -> Response<Bytes> {
    let text = "the path has a segment . or .., an encoded slash, a backslash or a zero byte, which programs read in different ways";
    let mut response = Response::new(format!("{server}: {text}\n").into());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// Returns the response to a refused request.
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
    if let Some(seconds) = refusal.seconds() {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    refusal.insert_fields(headers);
    response
}

/// Counts a request that exceeded its deadline. Returns the response, in which `server` names this program.
pub fn too_late(deadline: &Deadline, server: &str) -> Response<Bytes> {
    deadline.expire();
    let mut response = match deadline.format {
        Format::Grpc => Answer::<(), _, _>::refused(&GrpcAnswer, DeadlineExceeded::new(deadline.after())),
        Format::Http => deadline.policy.response(server),
    };
    if let Some(rules) = &deadline.headers {
        rules.insert(response.headers_mut());
    }
    response
}
