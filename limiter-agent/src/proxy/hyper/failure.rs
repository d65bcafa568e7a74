//! The failures between client and app. Only this module turns a failure into a response.

use std::{error::Error, iter, time::Duration};

use http::{HeaderValue, Response, StatusCode, Version, header};

use super::{
    request_body::BodyError,
    response_body::ResponseBody,
    streams::{http2_error, is_unprocessed},
    vetting::InvalidRequest,
};
use crate::proxy::app::{AppAddress, ConnectError, FailureCounts, InvalidResponse};

/// The extension of a response that was sent because the app refuses connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum AppDown {
    /// The app has received nothing of the request, so the client can retry any request.
    Unseen,
    /// The app stopped while it processed the request, so the client can retry only an idempotent request.
    InFlight,
}

/// The extension of a response to a request that the app refused before it processed anything of it. So the client can
/// send any request again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unprocessed;

/// The reason why a request got no response from the app.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum Failure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the app closed the connection before it answered")]
    Closed,
    #[error("the app stopped before it answered")]
    Stopped,
    #[error("the app's answer is not HTTP/1.1: {0}")]
    Protocol(hyper::Error),
    #[error("the app's answer is not HTTP/1.1: {0}")]
    InvalidResponse(#[from] InvalidResponse),
    #[error("the app's answer is not HTTP/2: {0}")]
    Http2(h2::Reason),
    #[error("the app reset the stream before it answered: {0}")]
    Reset(h2::Reason),
    #[error("the app refused the request before it processed it")]
    Unprocessed,
    #[error("CONNECT is not supported: this is a reverse proxy")]
    ConnectMethod,
    #[error("Max-Forwards is 0, so this proxy would have to answer TRACE, which it does not support")]
    TraceMethod,
    #[error(transparent)]
    InvalidRequest(#[from] InvalidRequest),
    #[error("the request's body was cut off: {0}")]
    ClientBody(hyper::Error),
    #[error("the request's body stalled: no data for {0:?}")]
    ClientStalled(Duration),
    #[error("the app did not answer within {0:?}")]
    Unanswered(Duration),
    #[error("the app does not read the request, and too many other requests wait for the app")]
    Unread,
    #[error("the app switched protocols without a request for it")]
    UnaskedUpgrade,
}

impl Failure {
    /// The failure for a hyper error of the connection that carried the request.
    pub(super) fn of(error: hyper::Error) -> Self {
        // axum wraps the error of a body.
        let mut sources = iter::successors(error.source(), |&error| error.source());
        let body = sources.find_map(|error| error.downcast_ref::<BodyError>());
        if let Some(BodyError::Stalled(pause)) = body {
            Self::ClientStalled(*pause)
        } else if error.is_user() || body.is_some() {
            Self::ClientBody(error)
        } else if error.is_parse() {
            Self::Protocol(error)
        } else if is_unprocessed(&error) {
            Self::Unprocessed
        } else {
            match http2_error(&error).and_then(|error| Some((error, error.reason()?))) {
                Some((error, reason)) if error.is_library() => Self::Http2(reason),
                Some((error, reason)) if error.is_reset() && error.is_remote() => Self::Reset(reason),
                _ => Self::Closed,
            }
        }
    }

    /// Checks whether the app has stopped, if it closed the connection before it answered.
    pub(in super::super) async fn or_stopped(self, app: &AppAddress) -> Self {
        match self {
            Self::Closed if Box::pin(app.is_down()).await => Self::Stopped,
            failure => failure,
        }
    }

    /// Returns `Some` if the app refuses connections, because it stopped or restarts. The client should then reconnect
    /// elsewhere.
    pub(in super::super) fn app_gone(&self) -> Option<AppDown> {
        match self {
            Self::Connect(ConnectError::Refused(..)) => Some(AppDown::Unseen),
            Self::Stopped => Some(AppDown::InFlight),
            _ => None,
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Connect(ConnectError::TimedOut(_)) | Self::Unanswered(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Connect(_)
            | Self::Closed
            | Self::Stopped
            | Self::Protocol(_)
            | Self::InvalidResponse(_)
            | Self::Http2(_)
            | Self::Reset(_)
            | Self::Unprocessed
            | Self::UnaskedUpgrade => StatusCode::BAD_GATEWAY,
            Self::Unread => StatusCode::SERVICE_UNAVAILABLE,
            Self::ConnectMethod | Self::TraceMethod => StatusCode::NOT_IMPLEMENTED,
            Self::InvalidRequest(_) | Self::ClientBody(_) => StatusCode::BAD_REQUEST,
            Self::ClientStalled(_) => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// Index into [`REASONS`](crate::proxy::REASONS).
    fn reason(&self) -> Option<usize> {
        match self {
            Self::Connect(ConnectError::Refused(..)) => Some(0),
            Self::Connect(ConnectError::TimedOut(_)) => Some(1),
            Self::Connect(ConnectError::Handshake(..)) => Some(2),
            Self::Closed | Self::Stopped | Self::Reset(_) | Self::Unprocessed => Some(3),
            Self::Protocol(_) | Self::InvalidResponse(_) | Self::Http2(_) | Self::UnaskedUpgrade => Some(4),
            Self::Unanswered(_) => Some(5),
            Self::Connect(ConnectError::NoDescriptor(_)) => Some(6),
            Self::Unread => Some(7),
            Self::ConnectMethod
            | Self::TraceMethod
            | Self::InvalidRequest(_)
            | Self::ClientBody(_)
            | Self::ClientStalled(_) => None,
        }
    }

    /// Counts the failure and responds in place of the app.
    ///
    /// After a malformed request, the connection closes. After a request that the app did not accept, the connection
    /// closes as well, so that the client's next request can go elsewhere.
    pub(in super::super) fn respond(&self, counts: &FailureCounts, version: Version) -> Response<ResponseBody> {
        if let Some(reason) = self.reason() {
            counts.count(reason);
            tracing::debug!(error = %self, "upstream failed");
        }
        let mut response = Response::new(ResponseBody::own(format!("weir-agent: {self}\n")));
        *response.status_mut() = self.status();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, text);
        let app_gone = self.app_gone();
        let last = self.status().is_client_error() || matches!(self, Self::ConnectMethod) || app_gone.is_some();
        if let Some(app_gone) = app_gone {
            response.extensions_mut().insert(app_gone);
        }
        if matches!(self, Self::Unprocessed) {
            response.extensions_mut().insert(Unprocessed);
        }
        if last && version != Version::HTTP_2 {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, io};

    use super::*;
    use crate::proxy::REASONS;

    #[test]
    fn each_failure_has_its_status_and_reason() {
        let address = "127.0.0.1:1".parse().unwrap();
        let counts = FailureCounts::default();
        let mut reasons = BTreeSet::new();
        for (failure, status) in [
            (Failure::Connect(ConnectError::Refused(address, io::ErrorKind::ConnectionRefused.into())), 502),
            (Failure::Connect(ConnectError::TimedOut(address)), 504),
            (Failure::Connect(ConnectError::NoDescriptor(address)), 502),
            (Failure::Closed, 502),
            (Failure::Stopped, 502),
            (Failure::Reset(h2::Reason::CANCEL), 502),
            (Failure::Unprocessed, 502),
            (Failure::Http2(h2::Reason::PROTOCOL_ERROR), 502),
            (Failure::ConnectMethod, 501),
            (Failure::TraceMethod, 501),
            (Failure::UnaskedUpgrade, 502),
            (Failure::InvalidResponse(InvalidResponse::Status), 502),
            (Failure::InvalidRequest(InvalidRequest::Host), 400),
            (Failure::ClientStalled(Duration::from_secs(1)), 408),
            (Failure::Unanswered(Duration::from_secs(1)), 504),
            (Failure::Unread, 503),
        ] {
            let response = failure.respond(&counts, Version::HTTP_11);
            assert_eq!(response.status(), status, "{failure}");
            reasons.extend(failure.reason());
        }
        let counted: Vec<usize> = (0..REASONS.len()).filter(|&index| counts.get()[index] > 0).collect();
        assert_eq!(counted, Vec::from_iter(reasons));
    }
}
