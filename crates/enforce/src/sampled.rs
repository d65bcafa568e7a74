//! Limits the log lines of frequent events: the first event is logged, then at most one per second, with the number of
//! events between them.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use weir_core::Time;

/// The pause after a logged event.
const PAUSE: Duration = Duration::from_secs(1);

/// Decides which events of one kind are logged, and counts the others.
#[derive(Debug, Default)]
pub struct Sample {
    pauses: Pauses,
    unlogged: AtomicU64,
}

/// Decides which events of one kind are logged. The caller counts them.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    /// The end of the pause, in nanoseconds.
    until: AtomicU64,
}

impl Sample {
    /// Returns `None` if this event should not be logged. Otherwise, returns the number of events that were not logged
    /// since the last log line.
    #[inline]
    pub fn take(&self, now: Time) -> Option<u64> {
        if self.pauses.begin(now) {
            return Some(self.unlogged.swap(0, Relaxed));
        }
        self.unlogged.fetch_add(1, Relaxed);
        None
    }
}

impl Pauses {
    /// Whether to log this event. If true, the next pause begins.
    #[inline]
    pub(crate) fn begin(&self, now: Time) -> bool {
        let until = self.until.load(Relaxed);
        now.as_nanos() >= until && self.begins_pause(until, now)
    }

    /// Returns true for exactly one of the threads that observed the end of the last pause.
    #[cold]
    fn begins_pause(&self, until: u64, now: Time) -> bool {
        let next = now.saturating_add(PAUSE).as_nanos();
        self.until.compare_exchange(until, next, Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_is_logged_and_then_one_per_second() {
        let start = Time::from_nanos(1_700_000_000_000_000_000);
        let sample = Sample::default();
        let at = |millis| sample.take(start.saturating_add(Duration::from_millis(millis)));
        assert_eq!(
            [at(0), at(0), at(1), at(999), at(1000), at(1001), at(5000)],
            [Some(0), None, None, None, Some(3), None, Some(1)]
        );
    }

    #[test]
    fn one_of_several_threads_begins_the_next_pause() {
        let (pauses, now) = (Pauses::default(), Time::from_nanos(5));
        let seen = pauses.until.load(Relaxed);
        assert_eq!([1, 2, 3].map(|_| pauses.begins_pause(seen, now)), [true, false, false]);
    }
}
