//! The operator's clock: the only file that asks what time it is. Everything else takes the time as an argument.
//!
//! [`now`] is for intervals (it stands still with tokio's paused clock in tests), [`since_boot`] for terms of leadership,
//! which must not outlast a suspended machine's sleep, [`unix_micros`] and [`timestamp`] are for what other programs
//! read. Never subtract two wall-clock times to get an interval.

use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// The monotonic time.
pub fn now() -> Instant {
    Instant::now()
}

/// The monotonic time that goes on while the machine is suspended.
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is ever negative: the clock starts at zero and never goes back.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The wall-clock time, for conditions and events.
pub fn timestamp() -> Timestamp {
    Timestamp::now()
}

/// Microseconds of Unix time, the raw material of snapshot sequences.
pub fn unix_micros() -> u64 {
    u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0)
}
