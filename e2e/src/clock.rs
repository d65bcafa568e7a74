//! The only module of this crate that reads Unix time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds of Unix time. The nodes of a kind cluster are containers, so agents and scenarios share one clock.
#[expect(clippy::disallowed_methods, reason = "the clock file of this crate")]
pub(crate) fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("this machine's clock is past 1970");
    u64::try_from(now.as_millis()).expect("milliseconds since 1970 fit 64 bits")
}
