//! The format of the responses that do not come from the app.

use http::header;

use super::matching::Headers;

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
