//! The journal of a limit, which records the times of charges for some periods after each change of the quota.
//!
//! The words of a strategy contain only the data that this strategy needs, and the next strategy needs the admissions
//! of another span of time. If the words do not contain the time of a request, the request must count at the time of
//! the change. This loses little after one change. But if changes are about as frequent as windows, callers would
//! starve. So for some periods after a change, each charge gets a note in the journal before the charge is made.
//! Afterwards, the note is confirmed or removed.
//!
//! The notes are an upper bound: at a change, they include all requests that were admitted before it. A confirmed
//! request was admitted at its time in the notes, or earlier.

use std::sync::{Mutex, PoisonError};

use super::history::Span;
use crate::{Quota, Strategy, Time};

/// The number of periods in which charges are recorded. A later change loses less than a sixteenth of a limit's
/// admissions.
const PERIODS: u64 = 16;

/// The largest number of notes. If there are more, every other note of the older half is dropped.
const MOST: usize = 128;

#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    /// The time of the last charge that was attempted.
    last: Option<u64>,
    /// Requests that were admitted or are being decided. A cost can be as large as a `u64`, even if it is refused, so
    /// this sum has more bits: the sum must never be less than the admissions.
    noted: u128,
    /// Requests that were admitted. If the sum does not fit, it is too small, which only makes the notes larger.
    confirmed: u64,
    /// The number of requests confirmed until each time, oldest first.
    notes: Vec<Span>,
}

impl Journal {
    /// Records a charge at this time or earlier, before the charge is made.
    pub(crate) fn note(&mut self, at: Time, cost: u64) {
        let at = at.as_nanos();
        self.noted += u128::from(cost);
        match self.last.replace(self.last.map_or(at, |last| last.max(at))) {
            // Of equal notes, the first is the most exact.
            Some(last) if at > last && self.notes.last().map_or(0, |note| note.count) != self.confirmed => {
                self.keep(Span { at: last, count: self.confirmed });
            }
            _ => {}
        }
    }

    /// Confirms a recorded charge after it was admitted, or removes it after a refusal.
    pub(crate) fn settle(&mut self, cost: u64, is_admitted: bool) {
        if is_admitted {
            self.confirmed = self.confirmed.saturating_add(cost);
        } else {
            self.noted -= u128::from(cost);
        }
    }

    /// Adds a note. If the journal is full, drops every other note of the older half.
    fn keep(&mut self, note: Span) {
        if self.notes.len() == MOST {
            let mut place = 0;
            self.notes.retain(|_| {
                place += 1;
                place > MOST / 2 || place % 2 == 0
            });
        }
        self.notes.push(note);
    }

    /// Returns times, oldest first, each with an upper bound of the requests admitted after this time.
    pub(super) fn admitted(&self) -> Vec<Span> {
        let after = |confirmed| u64::try_from(self.noted - u128::from(confirmed)).unwrap_or(u64::MAX);
        let all = Span { at: 0, count: after(0) };
        let notes = self.notes.iter().map(|note| Span { at: note.at, count: after(note.count) });
        let none = self.last.map(|last| Span { at: last, count: 0 });
        [all].into_iter().chain(notes).chain(none).collect()
    }
}

/// The journal of one limit, which threads share, and the time until which charges are recorded.
#[derive(Debug)]
pub(crate) struct SharedJournal {
    until: u64,
    /// Loom does not check this lock: no other step happens while it is locked.
    journal: Mutex<Journal>,
}

impl SharedJournal {
    /// Returns the journal of a limit whose quota changed at this time. None for a log, which stores all times.
    pub(crate) fn new(old: Quota, new: Quota, since: Time) -> Option<Self> {
        let longest = old.period_nanos().max(new.period_nanos());
        let watch = || Self { until: recorded_until(longest, since), journal: Mutex::new(Journal::default()) };
        (new.strategy() != Strategy::SlidingWindowLog).then(watch)
    }

    /// Returns true if a charge at this time is recorded.
    pub(crate) fn is_on(&self, now: Time) -> bool {
        now.as_nanos() < self.until
    }

    pub(crate) fn with<T>(&self, step: impl FnOnce(&mut Journal) -> T) -> T {
        step(&mut self.journal.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the time until which charges are recorded after a change.
pub(crate) fn recorded_until(period: u64, since: Time) -> u64 {
    since.as_nanos().saturating_add(period.saturating_mul(PERIODS))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Compares the journal with the list of all admissions. Charges overlap, are refused, or read the clock out of
    /// order.
    #[test]
    fn notes_are_upper_bounds_of_the_admissions() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..50 {
            let (mut journal, mut open, mut admitted, mut now) = (Journal::default(), Vec::new(), Vec::new(), 1_000);
            for _ in 0..1_000 {
                now += random(4);
                let at = now - random(20);
                journal.note(Time::from_nanos(at), 2);
                open.push(at);
                while open.len() > 3 {
                    let at = open.swap_remove(usize::try_from(random(4)).expect("small"));
                    let is_admitted = random(3) > 0;
                    journal.settle(2, is_admitted);
                    admitted.extend(is_admitted.then_some(at));
                }
            }
            // Open charges can still be admitted.
            admitted.append(&mut open);
            let known = journal.admitted();
            assert!(known.len() <= MOST + 2 && known.is_sorted_by(|one, other| one.at < other.at));
            for span in &known {
                let after = 2 * admitted.iter().filter(|&&at| at > span.at).count() as u64;
                assert!(span.count >= after, "{span:?}: {after}");
            }
            assert_eq!(known[0].count, 2 * admitted.len() as u64);
        }
    }

    #[test]
    fn a_refused_cost_of_any_size_leaves_no_trace() {
        let mut journal = Journal::default();
        journal.note(Time::from_nanos(1), 10);
        journal.settle(10, true);
        for _ in 0..2 {
            journal.note(Time::from_nanos(2), u64::MAX);
        }
        assert_eq!(journal.admitted()[0].count, u64::MAX, "the charges can still be admitted");
        for _ in 0..2 {
            journal.settle(u64::MAX, false);
        }
        assert_eq!(journal.admitted()[0].count, 10);
    }

    #[test]
    fn charges_that_do_not_overlap_are_known_exactly() {
        let mut journal = Journal::default();
        for at in 1..=100 {
            journal.note(Time::from_nanos(at), 1);
            journal.settle(1, at % 2 == 0);
        }
        let known = journal.admitted();
        let exact = (0..50).map(|pair| Span { at: 2 * pair, count: 50 - pair });
        for span in exact {
            let newest = known.iter().rev().find(|known| known.at <= span.at).expect("the first is before all");
            assert_eq!(newest.count, span.count, "{span:?}");
        }
    }
}
