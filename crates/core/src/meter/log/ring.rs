//! The ring in which a log stores the times of its requests, and the rule by which a new request takes over an entry.
//! This module admits no requests.
//!
//! The *head* points to the next request's entry: a place in the ring, and a number that grows with each lap and with
//! each refund. So no value of the head occurs again while a thread that read it can still swap it, and moving the head
//! needs no division. The lowest bit of the number distinguishes laps.

use crate::{
    Quota, Time,
    sync::{AtomicU64, Ordering},
    time::SET_BACK,
    word::SEALED,
};

/// The bit of an entry that distinguishes laps: set in the first lap, clear in the second lap, and so on.
pub(super) const LAP: u64 = 1 << 63;

/// The last time that fits into an entry, in the year 2262. Later times count as this time.
pub(super) const LAST: Time = Time::from_nanos(LAP - 3);

/// The number of words of a log before its ring.
pub(super) const BEFORE: usize = 3;

/// The bits of a head for the place: one bit more than the longest ring needs, so that no head has all bits set.
const PLACE: u32 = 21;

/// The difference of one lap in a head.
const NEXT: u64 = 1 << PLACE;

/// The ring, which has one entry for each request of a period.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    length: u64,
    period: u64,
}

/// The entry of a request: its place and its lap. The request is admitted when the entry of the previous lap is one
/// period old.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) place: u64,
    /// The bit of the previous lap: [`LAP`] or zero.
    pub(super) before: u64,
}

/// The largest entry value that lets another request take its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aged(u64);

/// The time at which an entry admits the next request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opens {
    At(u64),
    /// The entry's time is being written.
    Pending,
}

impl Ring {
    pub(super) fn new(quota: Quota) -> Self {
        Self { length: quota.requests(), period: quota.period_nanos() }
    }

    pub(super) fn words(&self) -> usize {
        BEFORE + usize::try_from(self.length).expect("at most 2^20")
    }

    /// Returns the head after this many requests from the start, up to one lap.
    pub(super) fn head(&self, requests: u64) -> u64 {
        self.moved(0, requests)
    }

    /// Returns the head this many requests later, up to one lap.
    #[inline]
    pub(super) fn moved(&self, head: u64, requests: u64) -> u64 {
        if Spot::of(head).place + requests < self.length {
            head + requests
        } else {
            (head + requests - self.length + NEXT) & !SEALED
        }
    }

    /// Returns an upper bound of the requests between two heads: a head that moved back counts as moved forward.
    pub(super) fn distance(&self, from: u64, to: u64) -> u64 {
        let laps = (to >> PLACE).saturating_sub(from >> PLACE);
        (laps.saturating_mul(self.length).saturating_add(Spot::of(to).place)).saturating_sub(Spot::of(from).place)
    }

    /// Returns a head at the position of `first`, with a value that was never used before.
    pub(super) fn moved_back(&self, head: u64, first: u64) -> u64 {
        let laps = if (head ^ first) & NEXT == 0 { 2 } else { 1 };
        ((((head >> PLACE) + laps) << PLACE) | Spot::of(first).place) & !SEALED
    }

    /// Returns the entry that is this many requests after another entry, up to one lap.
    #[inline]
    pub(super) fn after(&self, spot: Spot, requests: u64) -> Spot {
        let place = spot.place + requests;
        if place < self.length { Spot { place, ..spot } } else { spot.of_next_lap(place - self.length) }
    }

    /// Returns the entry that is this many requests before another entry, up to one lap.
    pub(super) fn before(&self, spot: Spot, requests: u64) -> Spot {
        match spot.place.checked_sub(requests) {
            Some(place) => Spot { place, ..spot },
            // One bit cannot distinguish the previous lap from the next lap.
            None => spot.of_next_lap(spot.place + self.length - requests),
        }
    }

    #[inline]
    pub(super) fn entry<'a>(&self, words: &'a [AtomicU64], spot: Spot) -> &'a AtomicU64 {
        &words[BEFORE + usize::try_from(spot.place).expect("at most 2^20")]
    }

    /// Writes the time of a counted request, or restores an entry to the previous lap. Only one thread writes at a
    /// time: the thread that moved the head. The next writer has read this entry before.
    #[inline]
    pub(super) fn write(&self, words: &[AtomicU64], spot: Spot, entry: u64) {
        self.entry(words, spot).store(entry, Ordering::Release);
    }

    /// Returns the value of a request's entry: zero if the entry was never used, the time plus one if it is of the
    /// previous lap, and otherwise [`LAP`] or more.
    #[inline]
    fn seen(&self, words: &[AtomicU64], spot: Spot) -> u64 {
        spot.seen(self.entry(words, spot))
    }

    /// Returns the entry value of the latest time that is one period old.
    #[inline]
    pub(super) fn aged(&self, now: Time) -> Aged {
        Aged((now.as_nanos() + 1).saturating_sub(self.period))
    }

    /// Returns true if the request of this entry is admitted now.
    #[inline]
    pub(super) fn is_open(&self, words: &[AtomicU64], spot: Spot, aged: Aged) -> bool {
        aged.has(self.seen(words, spot))
    }

    /// Returns the time at which the request of this entry is admitted.
    #[inline]
    pub(super) fn opens(&self, words: &[AtomicU64], spot: Spot, now: Time) -> Opens {
        match self.seen(words, spot) {
            0 => Opens::At(0),
            seen => match self.moment(seen, now) {
                Some(opens) => Opens::At(opens),
                None => self.opens_some_time(words, seen, now),
            },
        }
    }

    /// Returns the time at which an entry with this value admits another request, if the entry is written and its time
    /// is not too far ahead.
    #[inline]
    pub(super) fn moment(&self, seen: u64, now: Time) -> Option<u64> {
        let moment = seen.saturating_sub(1);
        (moment <= now.saturating_add(SET_BACK).as_nanos()).then_some(moment + self.period)
    }

    #[cold]
    fn opens_some_time(&self, words: &[AtomicU64], seen: u64, now: Time) -> Opens {
        if seen >= LAP {
            return Opens::Pending;
        }
        Self::set_back(words, now);
        Opens::At(now.as_nanos() + self.period)
    }

    /// Corrects the entries after the clock was set back. All admissions with later times then count as admitted now.
    /// All entries change together. Otherwise the next entry would start to age only when the entry before it has its
    /// turn.
    fn set_back(words: &[AtomicU64], now: Time) {
        let now = now.as_nanos() + 1;
        for entry in words.iter().skip(BEFORE) {
            let seen = entry.load(Ordering::SeqCst);
            if seen & !LAP > now {
                let _ = entry.compare_exchange(seen, seen & LAP | now, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }
}

impl Aged {
    /// Returns true if an entry with this value is old enough.
    #[inline]
    pub(super) fn has(self, seen: u64) -> bool {
        seen <= self.0
    }
}

impl Spot {
    /// Returns the entry of the next request.
    #[inline]
    pub(super) fn of(head: u64) -> Self {
        Self { place: head % NEXT, before: head >> PLACE << 63 }
    }

    /// Returns a head with the place and the lap bit of this entry.
    pub(super) fn head(self) -> u64 {
        (self.before >> 63 << PLACE) | self.place
    }

    /// Returns true if two heads have the same place and the same lap bit.
    pub(super) fn is_same(head: u64, other: u64) -> bool {
        (head ^ other).is_multiple_of(2 * NEXT)
    }

    #[inline]
    pub(super) fn of_next_lap(self, place: u64) -> Self {
        Self { place, before: self.before ^ LAP }
    }

    /// The value of an entry, as for [`Ring::seen`].
    #[inline]
    pub(super) fn seen(self, entry: &AtomicU64) -> u64 {
        entry.load(Ordering::SeqCst) ^ self.before
    }

    /// Returns the value of an entry that is written with this time. Never zero.
    #[inline]
    pub(super) fn written(self, at: Time) -> u64 {
        self.written_at_once(at.min(LAST))
    }

    /// Returns the value of an entry that is written with this time, which must not be later than [`LAST`].
    #[inline]
    pub(super) fn written_at_once(self, at: Time) -> u64 {
        (self.before ^ LAP) | (at.as_nanos() + 1)
    }

    /// Returns the value of an entry after a charge at this time was given back. The entry belongs to the previous lap
    /// and is exactly one period old at this time. If it would be older than the Unix epoch, the entry counts as never
    /// used.
    pub(super) fn given_back(self, at: Time, period: u64) -> u64 {
        at.as_nanos().checked_sub(period).map_or(self.before, |before| self.before | (before + 1))
    }

    /// Returns the time in the entry, if the entry is written and of this lap.
    pub(super) fn moment_of(self, entry: u64) -> Option<Time> {
        let moment = (entry ^ self.before ^ LAP).checked_sub(1)?;
        (moment <= LAST.as_nanos()).then(|| Time::from_nanos(moment))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Strategy;

    fn ring(requests: u64) -> Ring {
        Ring::new(Quota::new(Strategy::SlidingWindowLog, requests, Duration::from_secs(1), None).expect("valid"))
    }

    #[test]
    fn a_head_walks_the_ring_and_changes_its_bit_with_each_lap() {
        for requests in [1, 2, 3, 1 << 20] {
            let (ring, mut head) = (ring(requests), 0);
            for step in 0..3 * requests {
                let spot = Spot::of(head);
                assert_eq!((spot.place, spot.before), (step % requests, (step / requests) << 63));
                let first = ring.before(spot, requests);
                assert_eq!((ring.after(first, requests).place, first.place), (spot.place, spot.place));
                head = ring.moved(head, 1);
            }
        }
    }

    #[test]
    fn a_head_that_goes_back_was_never_there() {
        for (requests, cost) in [(1, 1), (3, 1), (3, 2), (3, 3)] {
            let (ring, mut seen, mut head) = (ring(requests), Vec::new(), 0);
            for _ in 0..20 {
                let first = head;
                head = ring.moved(head, cost);
                assert!(!seen.contains(&first) && !seen.contains(&head) && first != head);
                seen.push(head);
                let back = ring.moved_back(head, first);
                assert!(Spot::is_same(back, first) && !seen.contains(&back) && back != first);
                head = ring.moved(back, 1);
            }
        }
    }

    #[test]
    fn no_head_looks_sealed_or_unset() {
        let ring = ring(1 << 20);
        let last = (SEALED - 1) / NEXT * NEXT + ring.length - 1;
        assert_eq!(ring.moved(last, 1), 0);
        let back = ring.moved_back(last, last - 1);
        assert!(back & SEALED == 0 && Spot::is_same(back, last - 1));
        assert_ne!(last | SEALED, u64::MAX);
    }
}
