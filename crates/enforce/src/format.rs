//! The format of the responses that this program creates instead of the app.

use http::header;

use super::matching::Headers;

/// The format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The status and the body that the rule specifies.
    Http,
    /// A gRPC status, for gRPC clients.
    Grpc,
}

impl Format {
    /// Returns the format for a request with these headers.
    pub fn of(headers: Headers<'_>) -> Self {
        let grpc = headers.get(&header::CONTENT_TYPE).is_some_and(|value| value.starts_with(b"application/grpc"));
        if grpc { Self::Grpc } else { Self::Http }
    }
}
