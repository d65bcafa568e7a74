//! The agent's clocks. Only this file of the crate reads them; the engine has a clock of its own.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::SystemTime;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::time::Instant;

/// The time of tokio's timers.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The wall clock, which someone may set.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// The processor time that this program has used.
pub(crate) fn processor() -> Timespec {
    clock_gettime(ClockId::ProcessCPUTime)
}
