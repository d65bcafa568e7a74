//! Where a log keeps the moments of its requests, and what one of them says of the request that takes its place. It
//! admits nobody.
//!
//! The *head* says where the next request has its entry: a place in the ring, and a number that grows with each lap, and
//! by two when charges are given back. So no head comes again while a thread that saw it is still about to move it, and
//! moving on needs no division. The lowest bit of that number tells laps apart.

use crate::meter::SEALED;
use crate::supply::SET_BACK;
use crate::sync::{AtomicU64, Ordering};
use crate::{Quota, Time};

/// The bit of an entry that tells laps apart: set in the first, not in the second, and so on.
pub(super) const LAP: u64 = 1 << 63;

/// The last moment that an entry can hold, in the year 2262. There time stands still.
pub(super) const LAST: Time = Time::from_nanos(LAP - 3);

/// The words of a log before its ring.
pub(super) const BEFORE: usize = 3;

/// The bits of a head that are a place: one more than the longest ring needs, so that no head is all ones.
const PLACE: u32 = 21;

/// One lap, in a head.
const NEXT: u64 = 1 << PLACE;

/// As many entries as requests in a period.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    length: u64,
    period: u64,
}

/// Where a request has its entry: how far into which lap. A request may go once the entry of the lap before is a period old.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) place: u64,
    /// The bit of the lap before: [`LAP`] or zero.
    pub(super) before: u64,
}

/// What an entry may say so that another request can have its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aged(u64);

/// When a request may go that needs an entry's place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opens {
    At(u64),
    /// Its moment is just being written.
    Pending,
}

impl Ring {
    pub(super) fn new(quota: Quota) -> Self {
        Self { length: quota.requests(), period: quota.period_nanos() }
    }

    pub(super) fn words(&self) -> usize {
        BEFORE + usize::try_from(self.length).expect("at most 2^20")
    }

    /// The head after so many requests, up to a lap, from the beginning.
    pub(super) fn head(&self, requests: u64) -> u64 {
        self.moved(0, requests)
    }

    /// The head so many requests later, up to a lap.
    #[inline]
    pub(super) fn moved(&self, head: u64, requests: u64) -> u64 {
        if Spot::of(head).place + requests < self.length {
            head + requests
        } else {
            (head + requests - self.length + NEXT) & !SEALED
        }
    }

    /// How many requests a head moved on, at most: going back counts as more.
    pub(super) fn distance(&self, from: u64, to: u64) -> u64 {
        let laps = (to >> PLACE).saturating_sub(from >> PLACE);
        (laps.saturating_mul(self.length).saturating_add(Spot::of(to).place)).saturating_sub(Spot::of(from).place)
    }

    /// The head that has gone back to where it was at `first`, and was never seen before.
    pub(super) fn moved_back(&self, head: u64, first: u64) -> u64 {
        let laps = if (head ^ first) & NEXT == 0 { 2 } else { 1 };
        ((((head >> PLACE) + laps) << PLACE) | Spot::of(first).place) & !SEALED
    }

    /// The place of the request that comes so many after another, up to a lap.
    #[inline]
    pub(super) fn after(&self, spot: Spot, requests: u64) -> Spot {
        let place = spot.place + requests;
        if place < self.length { Spot { place, ..spot } } else { spot.of_next_lap(place - self.length) }
    }

    /// The place of the request that came so many before another, up to a lap.
    pub(super) fn before(&self, spot: Spot, requests: u64) -> Spot {
        match spot.place.checked_sub(requests) {
            Some(place) => Spot { place, ..spot },
            // As far as a bit can tell, that is the next lap, too.
            None => spot.of_next_lap(spot.place + self.length - requests),
        }
    }

    #[inline]
    pub(super) fn entry<'a>(&self, words: &'a [AtomicU64], spot: Spot) -> &'a AtomicU64 {
        &words[BEFORE + usize::try_from(spot.place).expect("at most 2^20")]
    }

    /// Writes the moment of a request that was counted, or takes the place of one back to the lap before. Nobody else writes
    /// then: who moved the head does, and whoever writes next has read this.
    #[inline]
    pub(super) fn write(&self, words: &[AtomicU64], spot: Spot, entry: u64) {
        self.entry(words, spot).store(entry, Ordering::Release);
    }

    /// What the entry that a request goes by says: zero if nobody ever had the place, the moment and one more if it is of
    /// the lap before, and [`LAP`] or more if it is not.
    #[inline]
    fn seen(&self, words: &[AtomicU64], spot: Spot) -> u64 {
        spot.seen(self.entry(words, spot))
    }

    /// The youngest that is a period old.
    #[inline]
    pub(super) fn aged(&self, now: Time) -> Aged {
        Aged((now.as_nanos() + 1).saturating_sub(self.period))
    }

    /// Whether the request of this place may go now.
    #[inline]
    pub(super) fn is_open(&self, words: &[AtomicU64], spot: Spot, aged: Aged) -> bool {
        aged.has(self.seen(words, spot))
    }

    /// When the request of this place may go.
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

    /// When an entry that says this lets another request go, if it is written and its moment not too far ahead.
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

    /// The clock was set back: all that was admitted later counts as if it had been admitted now. All of it at once: if each
    /// entry waited for its turn, the next one would begin to age only then.
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
    /// Whether what an entry says is old enough.
    #[inline]
    pub(super) fn has(self, seen: u64) -> bool {
        seen <= self.0
    }
}

impl Spot {
    /// Of the next request.
    #[inline]
    pub(super) fn of(head: u64) -> Self {
        Self { place: head % NEXT, before: head >> PLACE << 63 }
    }

    /// Whether two heads are at the same place, as far as a bit can tell of the same lap.
    pub(super) fn is_same(head: u64, other: u64) -> bool {
        (head ^ other).is_multiple_of(2 * NEXT)
    }

    #[inline]
    pub(super) fn of_next_lap(self, place: u64) -> Self {
        Self { place, before: self.before ^ LAP }
    }

    /// As [`Ring::seen`].
    #[inline]
    pub(super) fn seen(self, entry: &AtomicU64) -> u64 {
        entry.load(Ordering::SeqCst) ^ self.before
    }

    /// What its entry is once it is written, never zero.
    #[inline]
    pub(super) fn written(self, at: Time) -> u64 {
        self.written_at_once(at.min(LAST))
    }

    /// The same where the moment is known to be no later than [`LAST`].
    #[inline]
    pub(super) fn written_at_once(self, at: Time) -> u64 {
        (self.before ^ LAP) | (at.as_nanos() + 1)
    }

    /// What its entry is when a charge at that moment is given back: of the lap before, and just a period old by then. As
    /// if nobody ever had the place, if that would be before all time.
    pub(super) fn given_back(self, at: Time, period: u64) -> u64 {
        at.as_nanos().checked_sub(period).map_or(self.before, |before| self.before | (before + 1))
    }

    /// The moment that its entry holds, if it is written and of this lap.
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
