//! The ban of a key, which is a part of the key's value. While a key is banned, the counter grants nothing.
//!
//! A program starts a ban, and every program learns of it with its next question about the key. The counter stores when
//! the ban began, and each program names the length, so a change of the length applies to bans in force.

use std::time::Duration;

/// The longest ban: one week.
const LONGEST: u64 = 7 * 86_400_000_000;

/// The part of a question that is about the ban of its key. A question without this part ends the ban, because its rule
/// has no ban. If the counter has newer terms than the question, the ban stays, and a shorter length does not end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanQuestion {
    /// The length of bans, at most one week.
    pub length: Duration,
    /// What to do with the ban.
    pub change: BanChange,
}

/// What a question does with the ban of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanChange {
    /// A ban in force stays.
    Keep,
    /// The time since the start of the key's ban. A ban in force stays as it is.
    Start {
        /// The time since the ban began.
        ago: Duration,
    },
    /// The ban ends.
    Lift,
}

/// A ban in force. All times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Banned {
    /// The time of the counter at which the ban began.
    pub since: u64,
    /// The length of the ban.
    pub length: u64,
}

/// [`BanQuestion`] as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedBan {
    /// The length of bans.
    pub length: u64,
    /// The time since the ban began, if the question starts a ban.
    pub started: Option<u64>,
    /// True if the ban ends.
    pub is_lifted: bool,
    /// The beginning of the ban that the caller has seen. Zero if it has seen none.
    pub seen: u64,
}

impl Banned {
    /// The time at which the ban ends.
    pub const fn end(&self) -> u64 {
        self.since + self.length
    }
}

impl BanQuestion {
    pub(crate) fn encode(&self, seen: Option<Banned>) -> EncodedBan {
        EncodedBan {
            length: micros(self.length).max(1),
            started: if let BanChange::Start { ago } = self.change { Some(micros(ago)) } else { None },
            is_lifted: self.change == BanChange::Lift,
            seen: seen.map_or(0, |banned| banned.since),
        }
    }
}

impl EncodedBan {
    /// Creates the part of a question from the numbers of another process. None if a number is out of range.
    pub(crate) fn new(length: u64, started: Option<u64>, is_lifted: bool, seen: u64) -> Option<Self> {
        let is_valid = (1..=LONGEST).contains(&length) && started.is_none_or(|ago| ago <= LONGEST);
        (is_valid && seen < 2 * crate::terms::EXACT).then_some(Self { length, started, is_lifted, seen })
    }

    /// The ban after this question. Its terms can be older than those of the counter.
    pub(crate) fn apply(&self, stored: Option<Banned>, now: u64, is_older: bool) -> Option<Banned> {
        if self.is_lifted {
            return None;
        }
        let newer = stored.filter(|_| is_older).map_or(0, |banned| banned.length);
        let length = self.length.max(newer);
        let known = stored.map_or(0, |banned| banned.since).max(self.seen);
        // The clock was set back if the ban begins later than now.
        let in_force = |since: u64| since > 0 && since.min(now) + length > now;
        let started = || now.saturating_sub(self.started.unwrap_or(now));
        let since = if in_force(known) { known } else { started() };
        in_force(since).then_some(Banned { since: since.min(now), length })
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(LONGEST).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000_000_000;
    const MINUTE: u64 = 60_000_000;

    fn ask(change: BanChange) -> EncodedBan {
        BanQuestion { length: Duration::from_secs(60), change }.encode(None)
    }

    fn banned(since: u64) -> Option<Banned> {
        Some(Banned { since, length: MINUTE })
    }

    #[test]
    fn a_ban_begins_once_and_ends_at_its_time() {
        let (keep, start) = (ask(BanChange::Keep), ask(BanChange::Start { ago: Duration::from_secs(1) }));
        assert_eq!(keep.apply(None, NOW, false), None);
        let begun = start.apply(None, NOW, false);
        assert_eq!(begun, banned(NOW - 1_000_000));
        assert_eq!(start.apply(begun, NOW + 30_000_000, false), begun, "a ban in force is not extended");
        assert_eq!(keep.apply(begun, NOW + MINUTE - 1_000_001, false), begun);
        assert_eq!(keep.apply(begun, NOW + MINUTE - 1_000_000, false), None);
        assert_eq!(start.apply(begun, NOW + MINUTE, false), banned(NOW + MINUTE - 1_000_000));
        let late = ask(BanChange::Start { ago: Duration::from_secs(60) });
        assert_eq!(late.apply(None, NOW, false), None, "it has ended already");
    }

    #[test]
    fn a_ban_is_lifted_and_changed() {
        let begun = banned(NOW);
        assert_eq!(ask(BanChange::Lift).apply(begun, NOW, false), None);
        let keep = |seconds| BanQuestion { length: Duration::from_secs(seconds), change: BanChange::Keep }.encode(None);
        assert_eq!(keep(30).apply(begun, NOW + MINUTE / 2, false), None);
        let longer = Some(Banned { since: NOW, length: 2 * MINUTE });
        assert_eq!(keep(120).apply(begun, NOW + MINUTE / 2, false), longer);
    }

    /// A store that lost the ban learns it from a program that has seen it.
    #[test]
    fn a_ban_that_was_seen_is_restored() {
        let seen = BanQuestion { length: Duration::from_secs(60), change: BanChange::Keep }.encode(banned(NOW));
        assert_eq!(seen.apply(None, NOW + 1, false), banned(NOW));
        assert_eq!(seen.apply(None, NOW + MINUTE, false), None);
    }

    /// A program that does not know a longer length yet must not free the key for all programs.
    #[test]
    fn older_terms_with_a_shorter_ban_do_not_end_one() {
        let hour = Some(Banned { since: NOW, length: 60 * MINUTE });
        for change in [BanChange::Keep, BanChange::Start { ago: Duration::ZERO }] {
            assert_eq!(ask(change).apply(hour, NOW + 2 * MINUTE, true), hour, "{change:?}");
        }
        assert_eq!(ask(BanChange::Keep).apply(hour, NOW + 60 * MINUTE, true), None);
        assert_eq!(ask(BanChange::Lift).apply(hour, NOW, true), None);
    }

    #[test]
    fn a_clock_that_was_set_back_extends_no_ban_beyond_its_length() {
        assert_eq!(ask(BanChange::Keep).apply(banned(NOW + 9 * MINUTE), NOW, false), banned(NOW));
    }
}
