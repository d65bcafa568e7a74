//! The deadline of a policy, and the response to requests that exceed it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

/// The deadline of a policy.
#[derive(Debug)]
pub(super) struct PolicyDeadline {
    /// The maximum time of a request.
    pub(super) after: Duration,
    pub(super) status: StatusCode,
    /// `None` for a line that names the deadline.
    pub(super) body: Option<Bytes>,
    pub(super) content_type: HeaderValue,
}

impl PolicyDeadline {
    /// Returns the response to a request that exceeded the deadline. `server` names this program.
    pub(super) fn response(&self, server: &str) -> Response<Bytes> {
        let line = || format!("{server}: no answer within the deadline of {} ms\n", self.after.as_millis()).into();
        let mut response = Response::new(self.body.clone().unwrap_or_else(line));
        *response.status_mut() = self.status;
        response.headers_mut().insert(header::CONTENT_TYPE, self.content_type.clone());
        response
    }
}
