//! Where a log keeps the moments of its requests, and what one of them says of the request that takes its place. It
//! admits nobody.

use crate::divisor::Divisor;
use crate::supply::SET_BACK;
use crate::sync::{AtomicU64, Ordering};
use crate::{Quota, Time};

/// The bit that tells laps apart: set in the first, not in the second, and so on.
const LAP: u64 = 1 << 63;

/// An entry of a request that is just being given back, in any lap.
pub(super) const GONE: u64 = LAP - 1;

/// The last moment that an entry can hold, in the year 2262. There time stands still.
pub(super) const LAST: Time = Time::from_nanos(GONE - 2);

/// The words of a log before its ring.
const HEAD: usize = 3;

/// As many entries as requests in a period.
#[derive(Debug)]
pub(super) struct Ring {
    length: u64,
    period: u64,
    laps: Divisor,
}

/// Where a request has its entry: how far into which lap. A request may go once the entry of the lap before is a period old.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    place: u64,
    /// The bit of the lap before: [`LAP`] or zero.
    before: u64,
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
        Self { length: quota.requests(), period: quota.period_nanos(), laps: Divisor::new(quota.requests()) }
    }

    pub(super) fn words(&self) -> usize {
        HEAD + usize::try_from(self.length).expect("at most 2^20")
    }

    /// The place of request number `index`.
    #[inline]
    pub(super) fn spot(&self, index: u64) -> Spot {
        let (lap, place) = self.laps.divide(index);
        Spot { place, before: lap << 63 }
    }

    /// The place of the request that comes so many after another, up to a lap: no division.
    #[inline]
    pub(super) fn after(&self, spot: Spot, requests: u64) -> Spot {
        let place = spot.place + requests;
        if place < self.length {
            Spot { place, ..spot }
        } else {
            Spot { place: place - self.length, before: spot.before ^ LAP }
        }
    }

    #[inline]
    pub(super) fn entry<'a>(&self, words: &'a [AtomicU64], spot: Spot) -> &'a AtomicU64 {
        &words[HEAD + usize::try_from(spot.place).expect("at most 2^20")]
    }

    /// Writes the moment of a request that was counted.
    ///
    /// An exchange, which comes after all others of this entry. Loom finds places that are given twice where it is a store.
    #[inline]
    pub(super) fn write(&self, words: &[AtomicU64], spot: Spot, at: Time) {
        self.entry(words, spot).swap(spot.written(at), Ordering::SeqCst);
    }

    /// What the entry that a request goes by says: zero if nobody ever had the place, the moment and one more if it is of
    /// the lap before, and as much as [`GONE`] or more if it is not, or given back.
    #[inline]
    fn seen(&self, words: &[AtomicU64], spot: Spot) -> u64 {
        self.entry(words, spot).load(Ordering::SeqCst) ^ spot.before
    }

    /// The youngest that is a period old.
    #[inline]
    pub(super) fn aged(&self, now: Time) -> Aged {
        Aged((now.as_nanos() + 1).saturating_sub(self.period))
    }

    /// Whether the request of this place may go now.
    #[inline]
    pub(super) fn is_open(&self, words: &[AtomicU64], spot: Spot, Aged(youngest): Aged) -> bool {
        self.seen(words, spot) <= youngest
    }

    /// When the request of this place may go.
    #[inline]
    pub(super) fn opens(&self, words: &[AtomicU64], spot: Spot, now: Time) -> Opens {
        match self.seen(words, spot) {
            0 => Opens::At(0),
            seen if seen - 1 <= now.saturating_add(SET_BACK).as_nanos() => Opens::At(seen - 1 + self.period),
            seen => self.opens_some_time(words, spot, seen, now),
        }
    }

    #[cold]
    fn opens_some_time(&self, words: &[AtomicU64], spot: Spot, seen: u64, now: Time) -> Opens {
        if seen >= GONE {
            return Opens::Pending;
        }
        // The clock was set back: as if it had been admitted now.
        let now = now.as_nanos() + 1;
        let [from, to] = [seen, now].map(|seen| seen ^ spot.before);
        let _ = self.entry(words, spot).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        Opens::At(now - 1 + self.period)
    }
}

impl Spot {
    /// What its entry is once it is written, never zero.
    #[inline]
    pub(super) fn written(self, at: Time) -> u64 {
        (self.before ^ LAP) | (at.min(LAST).as_nanos() + 1)
    }

    /// The moment that its entry holds, if it is written and of this lap.
    pub(super) fn moment_of(self, entry: u64) -> Option<Time> {
        let moment = (entry ^ self.before ^ LAP).checked_sub(1)?;
        (moment <= LAST.as_nanos()).then(|| Time::from_nanos(moment))
    }
}
