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
    pub(super) allowed: Count,
    pub(super) limited: Count,
    pub(super) shadow_limited: Count,
    pub(super) bypassed: Count,
    /// Exceeded deadlines. Such a request also counts as allowed.
    pub(super) expired: Count,
    pub(super) bans_started: Count,
    banned: Count,
    shadow_banned: Count,
    pub(super) ban_overflow: Count,
    /// The waits of admitted requests.
    waits: Histogram,
    /// Decides which refusals are logged.
    refusals: Pauses,
    /// The value of `limited` when the last refusal was logged.
    logged: AtomicU64,
}

/// A number that never decreases.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

/// The number of requests that no rule matched. A change of rules does not reset it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Unmatched(pub(super) Count);

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

impl Count {
    pub(super) fn count(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Statistics {
    /// Returns the number of earlier refusals that were not logged, if the refusal that was just counted should be
    /// logged.
    #[inline]
    pub(super) fn log_limited(&self, now: Time) -> Option<u64> {
        self.refusals.begin(now).then(|| {
            let limited = self.limited.get();
            limited.saturating_sub(self.logged.swap(limited, Relaxed)).saturating_sub(1)
        })
    }

    /// Counts a request of a key that a rule in this mode has banned, in addition to its refusal.
    pub(super) fn count_banned(&self, mode: Mode) {
        let count = if mode == Mode::Shadow { &self.shadow_banned } else { &self.banned };
        count.count();
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
            allowed: self.allowed.get(),
            limited: self.limited.get(),
            shadow_limited: self.shadow_limited.get(),
            bypassed: self.bypassed.get(),
            expired: self.expired.get(),
            bans_started: self.bans_started.get(),
            banned: self.banned.get(),
            shadow_banned: self.shadow_banned.get(),
            ban_overflow: self.ban_overflow.get(),
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
            statistics.limited.count();
            statistics.log_limited(start.saturating_add(Duration::from_millis(millis)))
        };
        let unlogged = [0, 0, 1, 999, 1000, 1001, 5000].map(refuse_at);
        assert_eq!(unlogged, [Some(0), None, None, None, Some(3), None, Some(1)]);
        assert_eq!(statistics.read().limited, 7);
    }
}
