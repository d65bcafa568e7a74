//! The ban of keys that a rule refuses again and again.
//!
//! A rule counts its own refusals of each key. The refusal that completes `after` refusals within the time `within`
//! bans the key: the rule then refuses all requests of the key for a fixed time, and no rule is charged for them.
//! Refusals during a ban do not count, so a ban ends at its time. Then the key starts without refusals. In shadow mode
//! a ban is only counted.
//!
//! Each program counts the refusals that it saw, also for a rule that a store counts. Such a rule also has its bans in
//! the store (`rule/bans.rs`).

mod table;

use std::{
    sync::{Arc, atomic::Ordering::Acquire},
    time::Duration,
};

use weir_core::Time;

use self::table::Table;
use super::{lower::LoweredBan, statistics::Statistics};

/// A ban that applies to a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BannedNow {
    pub(super) rest: Duration,
    /// Whether the ban begins with this request. If not, the key was already banned.
    pub(super) begins: bool,
}

/// The ban of a rule in force.
#[derive(Debug)]
pub(super) struct Ban {
    lowered: LoweredBan,
    /// Shared with the rule's successors, so a change of the numbers applies to bans in force.
    table: Arc<Table>,
}

impl Ban {
    /// Creates the ban of a rule. `before` is the ban of the same rule before a change that kept the key. A ban that has
    /// ended by the earlier numbers does not begin again, and refusals that were too old to count do not count again.
    pub(super) fn from_lowered(before: Option<&Self>, lowered: LoweredBan, now: Time) -> Self {
        let table = before.map(|before| {
            before.banned_keys(now);
            Arc::clone(&before.table)
        });
        Self { lowered, table: table.unwrap_or_default() }
    }

    /// Whether a key is possibly banned. A request of any other rule need not look for its key.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.table.banned.load(Acquire) > 0
    }

    /// Returns the rest of the key's ban. `None` if the key is not banned.
    pub(super) fn rest(&self, key: &[u8], now: Time) -> Option<Duration> {
        self.table.rest(key, now, &self.lowered)
    }

    /// Counts a refusal of a key by the rule. Returns the ban if the key is banned now.
    pub(super) fn refused(&self, key: &[u8], at: Time, statistics: &Statistics) -> Option<BannedNow> {
        self.table.refused(key, at, &self.lowered, statistics)
    }

    /// Records a ban that another program started.
    pub(super) fn learn(&self, key: &[u8], rest: Duration, at: Time) {
        self.table.learn(key, rest, at, &self.lowered);
    }

    /// Removes the ban of a key.
    pub(super) fn lift_one(&self, key: &[u8]) {
        self.table.remove(key);
    }

    /// The length of bans.
    pub(super) fn length(&self) -> Duration {
        self.lowered.length
    }

    /// Returns the number of banned keys. Removes the entries of bans that have ended, and of refusals that are too old
    /// to count.
    pub(super) fn banned_keys(&self, now: Time) -> u64 {
        self.table.sweep_all(now, &self.lowered)
    }

    /// Returns the number of banned keys, with a bound on the work: of more than 16,384 keys, bans that have ended
    /// count until a later call. Removes old entries, too.
    pub(super) fn count(&self, now: Time) -> u64 {
        self.table.count(now, &self.lowered)
    }

    /// Calls `each` for every banned key, with the rest of its ban.
    pub(super) fn for_each(&self, now: Time, each: impl FnMut(&[u8], Duration)) {
        self.table.for_each(now, &self.lowered, each);
    }

    /// Lifts the bans of these keys. Returns the number of keys that were banned.
    pub(super) fn lift(&self, now: Time, is_wanted: impl FnMut(&[u8]) -> bool) -> u64 {
        self.table.lift(now, &self.lowered, is_wanted)
    }
}

#[cfg(test)]
mod tests;
