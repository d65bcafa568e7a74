//! The operator's clock: the only file that asks what time it is. Everything else takes the time as an argument.
//!
//! [`now`] is for intervals (it stands still with tokio's paused clock in tests), [`unix_micros`] and [`timestamp`] are
//! for what other programs read. Never subtract two wall-clock times to get an interval.

use jiff::Timestamp;
use tokio::time::Instant;

/// The monotonic time.
pub fn now() -> Instant {
    Instant::now()
}

/// The wall-clock time, for conditions and events.
pub fn timestamp() -> Timestamp {
    Timestamp::now()
}

/// Microseconds of Unix time, the raw material of snapshot sequences.
pub fn unix_micros() -> u64 {
    u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0)
}
