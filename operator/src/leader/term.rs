//! The time in which an operator may write, and the sequences that it may use for snapshots.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    election::{Moment, Tenure},
    timing::micros,
};
use crate::clock;

/// A term of leadership. A clone is cheap and shares the end of the term, which each renewal moves.
///
/// A writer calls [`Term::is_current`] immediately before it writes. The sequences of snapshots come from the term. They
/// grow with time, and all sequences of a term are larger than those of earlier terms, because each leader reserves its
/// sequences in the Lease.
#[derive(Clone, Debug)]
pub struct Term(Arc<Bounds>);

#[derive(Debug)]
struct Bounds {
    since: Moment,
    first_sequence: u64,
    /// The end of the term, in microseconds since boot.
    until: AtomicU64,
}

impl Term {
    /// Returns the term of an operator without rivals, which never ends.
    pub fn unbounded() -> Self {
        Self::new(clock::since_boot(), Duration::MAX, clock::unix_micros())
    }

    /// Returns a term that has ended.
    pub fn over() -> Self {
        Self::new(Duration::ZERO, Duration::ZERO, 0)
    }

    pub(super) fn of(tenure: &Tenure) -> Self {
        Self::new(tenure.since, tenure.until, tenure.first_sequence)
    }

    fn new(since: Moment, until: Moment, first_sequence: u64) -> Self {
        Self(Arc::new(Bounds { since, first_sequence, until: AtomicU64::new(micros(until)) }))
    }

    /// Returns true if the holder of this term may write at this time.
    pub fn is_current(&self, now: Moment) -> bool {
        micros(now) < self.0.until.load(Ordering::Acquire)
    }

    /// Returns the sequence of a snapshot that is created at this time.
    pub fn sequence(&self, now: Moment) -> u64 {
        self.0.first_sequence.saturating_add(micros(now.saturating_sub(self.0.since)))
    }

    pub(super) fn extend(&self, tenure: &Tenure) {
        self.0.until.store(micros(tenure.until), Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.0.until.store(0, Ordering::Release);
    }

    /// Returns a term that never ends, whose first sequence is `number`.
    #[cfg(test)]
    pub(crate) fn numbered(number: u64) -> Self {
        Self::new(Duration::ZERO, Duration::MAX, number)
    }

    /// Returns a term that ends at this time, for simulations.
    pub fn ending(until: Moment) -> Self {
        Self::new(Duration::ZERO, until, 0)
    }

    pub(super) fn is(&self, tenure: &Tenure) -> bool {
        self.0.since == tenure.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenure(since: u64, until: u64) -> Tenure {
        let [since, until] = [since, until].map(Duration::from_secs);
        Tenure { since, until, first_sequence: 1000, sequences_below: 9_001_000 }
    }

    #[test]
    fn a_term_ends_at_its_time_for_every_clone_and_moves_with_renewals() {
        let term = Term::of(&tenure(10, 16));
        let clone = term.clone();
        assert!(clone.is_current(Duration::from_micros(15_999_999)) && !clone.is_current(Duration::from_secs(16)));
        term.extend(&tenure(10, 18));
        assert!(clone.is_current(Duration::from_secs(17)) && clone.is(&tenure(10, 18)));
        term.end();
        assert!(!clone.is_current(Duration::from_secs(11)));
        assert!(!Term::over().is_current(Duration::ZERO) && Term::unbounded().is_current(Duration::from_secs(1 << 40)));
    }

    #[test]
    fn sequences_grow_by_the_microsecond() {
        let term = Term::of(&tenure(10, 16));
        assert_eq!(term.sequence(Duration::from_secs(10)), 1000);
        assert_eq!(term.sequence(Duration::from_micros(10_000_007)), 1007);
    }
}
