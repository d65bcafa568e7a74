//! The possible faults of the app's response.

/// The fault of a response that was read without hyper. The messages are those of hyper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum InvalidResponse {
    #[error("invalid HTTP header parsed")]
    Header,
    #[error("invalid HTTP status-code parsed")]
    Status,
    #[error("invalid HTTP version parsed")]
    Version,
    #[error("invalid content-length parsed")]
    Length,
    #[error("unexpected transfer-encoding parsed")]
    Coding,
    #[error("message head is too large")]
    TooLarge,
    #[error("invalid chunk parsed")]
    Chunk,
}

impl From<httparse::Error> for InvalidResponse {
    fn from(error: httparse::Error) -> Self {
        match error {
            httparse::Error::Status => Self::Status,
            httparse::Error::Version => Self::Version,
            httparse::Error::TooManyHeaders => Self::TooLarge,
            httparse::Error::HeaderName
            | httparse::Error::HeaderValue
            | httparse::Error::NewLine
            | httparse::Error::Token => Self::Header,
        }
    }
}
