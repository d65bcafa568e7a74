//! The statistics of a rule: the numbers of its decisions, for the status and the metrics. No decision reads them: the
//! counts of limiters are in `weir-core` or in a store.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use weir_core::Time;
use weir_wire::Mode;

use crate::{
    histogram::{Histogram, HistogramValues},
    sampled::Pauses,
};

/// The statistics of one rule, which never decrease. The alignment prevents two rules from sharing a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Statistics {
    allowed: AtomicU64,
    limited: AtomicU64,
    shadow_limited: AtomicU64,
    bypassed: AtomicU64,
    expired: AtomicU64,
    bans_started: AtomicU64,
    banned: AtomicU64,
    shadow_banned: AtomicU64,
    ban_overflow: AtomicU64,
    /// The waits of admitted requests.
    waits: Histogram,
    /// Decides which refusals are logged.
    refusals: Pauses,
    /// The value of `limited` when the last refusal was logged.
    logged: AtomicU64,
}

/// The number of requests that no rule matched. The number never decreases, and a change of rules does not reset it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Unmatched(AtomicU64);

/// The statistics of a rule at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleStatistics {
    /// Requests and messages that the rule admitted.
    pub allowed: u64,
    /// Requests and messages that the rule refused.
    pub limited: u64,
    /// Requests and messages that the rule would have refused if it were not in shadow mode.
    pub shadow_limited: u64,
    /// Requests that passed because this rule is a bypass.
    pub bypassed: u64,
    /// Allowed requests that waited.
    pub waited: u64,
    /// Allowed requests whose deadline passed before the app answered.
    pub expired: u64,
    /// Bans of a key that began.
    pub bans_started: u64,
    /// Requests of banned keys, which are a part of `limited`.
    pub banned: u64,
    /// Requests of keys that are banned in shadow mode, which are a part of `shadow_limited`.
    pub shadow_banned: u64,
    /// Refusals that did not count for a ban, because `maxKeys` other keys had refusals or were banned.
    pub ban_overflow: u64,
}

impl Unmatched {
    pub(super) fn count(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Statistics {
    pub(super) fn count_allowed(&self) {
        self.allowed.fetch_add(1, Relaxed);
    }

    pub(super) fn count_limited(&self) {
        self.limited.fetch_add(1, Relaxed);
    }

    /// Returns the number of earlier refusals that were not logged, if the refusal that was just counted should be
    /// logged.
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

    /// Counts an exceeded deadline, in addition to [`count_allowed`](Self::count_allowed).
    pub(super) fn count_expired(&self) {
        self.expired.fetch_add(1, Relaxed);
    }

    pub(super) fn count_ban_started(&self) {
        self.bans_started.fetch_add(1, Relaxed);
    }

    /// Counts a request of a key that a rule in this mode has banned, in addition to its refusal.
    pub(super) fn count_banned(&self, mode: Mode) {
        let count = if mode == Mode::Shadow { &self.shadow_banned } else { &self.banned };
        count.fetch_add(1, Relaxed);
    }

    pub(super) fn count_ban_overflow(&self) {
        self.ban_overflow.fetch_add(1, Relaxed);
    }

    /// Counts the wait of an admitted request.
    pub(super) fn count_wait(&self, wait: Duration) {
        self.waits.record(wait);
    }

    pub(super) fn waits(&self) -> HistogramValues {
        self.waits.values()
    }

    pub(super) fn read(&self) -> RuleStatistics {
        RuleStatistics {
            allowed: self.allowed.load(Relaxed),
            limited: self.limited.load(Relaxed),
            shadow_limited: self.shadow_limited.load(Relaxed),
            bypassed: self.bypassed.load(Relaxed),
            expired: self.expired.load(Relaxed),
            bans_started: self.bans_started.load(Relaxed),
            banned: self.banned.load(Relaxed),
            shadow_banned: self.shadow_banned.load(Relaxed),
            ban_overflow: self.ban_overflow.load(Relaxed),
            waited: self.waits.values().buckets.iter().sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_contains_the_number_of_unlogged_refusals() {
        let (statistics, start) = (Statistics::default(), Time::from_nanos(1_700_000_000_000_000_000));
        let refuse_at = |millis| {
            statistics.count_limited();
            statistics.log_limited(start.saturating_add(Duration::from_millis(millis)))
        };
        let told = [0, 0, 1, 999, 1000, 1001, 5000].map(refuse_at);
        assert_eq!(told, [Some(0), None, None, None, Some(3), None, Some(1)]);
        assert_eq!(statistics.read().limited, 7);
    }
}
