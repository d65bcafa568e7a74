//! The operator's clock. Only this file reads the time. All other code takes it as an argument.
//!
//! [`now`] is for intervals; tests can pause it with tokio's clock. [`since_boot`] is for terms of leadership: it
//! keeps running while the machine is suspended. [`unix_micros`] and [`timestamp`] are for values that other programs
//! read. Never subtract two wall-clock times to get an interval.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::Duration;

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// Returns the monotonic time.
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the monotonic time, including time during which the machine was suspended.
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither part is negative: the clock starts at zero and never goes back.
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the CPU time that this process has used.
pub(crate) fn processor() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Returns the wall-clock time, for conditions and events.
pub fn timestamp() -> Timestamp {
    Timestamp::now()
}

/// Returns microseconds of Unix time, the base of snapshot sequences.
pub fn unix_micros() -> u64 {
    u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0)
}
