//! The only place of this crate that reads a clock.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::{Instant, SystemTime};

use weir_core::Time;

/// Unix time as it was at the start, plus what has passed since by the monotonic clock: it never runs backwards, and
/// windows are aligned to Unix time. Changes of the system's clock after the start do not show.
///
/// ```
/// let clock = weir_tower::MonotonicClock::start();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    unix: Time,
    started: Instant,
}

impl MonotonicClock {
    /// Takes the system's time, once.
    pub fn start() -> Self {
        // A system clock before 1970 counts as 1970: only the alignment of windows hangs on it.
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { unix: Time::default().saturating_add(unix), started: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        self.unix.saturating_add(self.started.elapsed())
    }
}
