//! The clock. No other file of the crate reads it.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::Duration;

use tokio::time::Instant;

pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn since(start: Instant) -> Duration {
    start.elapsed()
}
