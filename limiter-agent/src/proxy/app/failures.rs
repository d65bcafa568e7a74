//! How the app can fail: the faults of its responses, and the number of its failures.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// The values of `reason` in `weir_upstream_errors_total`, in the order of [`FailureCounts::get`].
pub(crate) const REASONS: [&str; 8] =
    ["refused", "connect_timeout", "handshake", "closed", "protocol", "response_timeout", "descriptors", "unread"];

/// The number of failures of the app, by reason. Client errors do not count.
#[derive(Debug, Default)]
pub(crate) struct FailureCounts([AtomicU64; REASONS.len()]);

impl FailureCounts {
    pub(crate) fn get(&self) -> [u64; REASONS.len()] {
        self.0.each_ref().map(|count| count.load(Relaxed))
    }

    /// Counts a failure with this index into [`REASONS`].
    pub(in super::super) fn count(&self, reason: usize) {
        self.0[reason].fetch_add(1, Relaxed);
    }
}
