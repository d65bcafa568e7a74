//! The statistics of a rule: what it decided. The status and the metrics both read them. No decision does: the state of
//! a limiter is its count, in `weir-core` or in a store.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use weir_core::Time;

use crate::{
    histogram::{self, Histogram},
    sampled::Pauses,
};

/// The statistics of one rule. They only grow. They are aligned so that two rules never share a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Counters {
    allowed: AtomicU64,
    limited: AtomicU64,
    shadow_limited: AtomicU64,
    bypassed: AtomicU64,
    expired: AtomicU64,
    /// How long admitted requests had waited.
    waits: Histogram,
    /// Which refusals are logged, and how many were counted when the last one was logged.
    refusals: Pauses,
    logged: AtomicU64,
}

/// Requests that no rule matched. The number only grows, and a change of rules keeps it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Unmatched(AtomicU64);

/// The statistics at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests and messages that the rule admitted.
    pub allowed: u64,
    /// Requests and messages that the rule refused.
    pub limited: u64,
    /// Requests and messages that the rule would have refused if its policy were not in shadow mode.
    pub shadow_limited: u64,
    /// Requests that passed because this rule is a bypass.
    pub bypassed: u64,
    /// Those of `allowed` that waited.
    pub waited: u64,
    /// Those of `allowed` whose deadline passed before the app answered.
    pub expired: u64,
}

impl Unmatched {
    pub(super) fn count(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Counters {
    pub(super) fn count_allowed(&self) {
        self.allowed.fetch_add(1, Relaxed);
    }

    pub(super) fn count_limited(&self) {
        self.limited.fetch_add(1, Relaxed);
    }

    /// Whether to log the refusal that was just counted: if so, how many refusals before it were not logged.
    #[inline]
    pub(super) fn log_limited(&self, now: Time) -> Option<u64> {
        self.refusals.begin(now).then(|| {
            let limited = self.limited.load(Relaxed);
            limited.saturating_sub(self.logged.swap(limited, Relaxed)).saturating_sub(1)
        })
    }

    pub(super) fn count_shadow_limited(&self) {
        self.shadow_limited.fetch_add(1, Relaxed);
    }

    pub(super) fn count_bypassed(&self) {
        self.bypassed.fetch_add(1, Relaxed);
    }

    /// Counts an expired deadline, in addition to [`count_allowed`](Self::count_allowed).
    pub(super) fn count_expired(&self) {
        self.expired.fetch_add(1, Relaxed);
    }

    /// Counts the wait of a request that was admitted in the end.
    pub(super) fn count_wait(&self, wait: Duration) {
        self.waits.record(wait);
    }

    pub(super) fn waits(&self) -> histogram::Snapshot {
        self.waits.snapshot()
    }

    pub(super) fn read(&self) -> Counts {
        Counts {
            allowed: self.allowed.load(Relaxed),
            limited: self.limited.load(Relaxed),
            shadow_limited: self.shadow_limited.load(Relaxed),
            bypassed: self.bypassed.load(Relaxed),
            expired: self.expired.load(Relaxed),
            waited: self.waits.snapshot().buckets.iter().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_how_many_refusals_came_before_it_that_had_none() {
        let (counters, start) = (Counters::default(), Time::from_nanos(1_700_000_000_000_000_000));
        let refuse_at = |millis| {
            counters.count_limited();
            counters.log_limited(start.saturating_add(Duration::from_millis(millis)))
        };
        let told = [0, 0, 1, 999, 1000, 1001, 5000].map(refuse_at);
        assert_eq!(told, [Some(0), None, None, None, Some(3), None, Some(1)]);
        assert_eq!(counters.read().limited, 7);
    }
}
