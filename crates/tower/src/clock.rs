//! The only place of this crate that reads a clock, and the only one that knows how its times and tokio's go together.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use weir_core::Time;

/// Unix time as it was at the start, plus what has passed since by tokio's monotonic clock: it never runs backwards, and
/// windows are aligned to Unix time. Changes of the system's clock after the start do not show.
///
/// Tokio's clock is the standard library's, unless a test has paused it; then limits stand still with the timers, and a
/// day's worth of them is tested in no time. No runtime is needed to read it.
///
/// ```
/// let clock = weir_tower::MonotonicClock::start();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    unix_nanos: u64,
    started: Instant,
}

impl MonotonicClock {
    /// Takes the system's time, once.
    pub fn start() -> Self {
        // A system clock before 1970 counts as 1970: only the alignment of windows hangs on it.
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { unix_nanos: Time::default().saturating_add(unix).as_nanos(), started: Instant::now() }
    }

    /// The time now.
    pub fn now(&self) -> Time {
        let elapsed = Instant::now().duration_since(self.started);
        // Not `Duration::as_nanos`: this is on every request's path, and 64 bits hold 584 years.
        let nanos = elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos());
        Time::from_nanos(self.unix_nanos.saturating_add(nanos))
    }

    /// The same moment as tokio's timers count it.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        let after_start = time.duration_since(Time::from_nanos(self.unix_nanos));
        self.started.checked_add(after_start).unwrap_or_else(|| Instant::now() + FAR)
    }
}

/// Later than any timer of tokio's can be.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
