//! The fast path of a decision: one read of the entry that decides, one swap of the head, one write of the entry.
//! Nothing branches on how much time has passed, so the processor continues to the next clock reading before this one
//! arrives.

use super::{
    Log, end, remember,
    ring::{Aged, BEFORE, LAP, LAST, Spot},
};
use crate::{
    Time,
    standing::Logged,
    sync::{AtomicU64, Ordering},
    word::SEALED,
};

/// How many entries are examined together.
const FEW: usize = 4;

impl Log {
    /// The decision; none if the case is not that simple. Returns the standing after a charge, with the head before it,
    /// or the unchanged standing after a refusal.
    #[inline(always)] // as in the cell: otherwise the answer goes through memory
    pub(crate) fn check_at_once(&self, words: &[AtomicU64], now: Time) -> Option<Result<(Logged, u64), Logged>> {
        let ([state, _, hint], entries) = words.split_first_chunk::<BEFORE>()?;
        let (head, nanos) = (state.load(Ordering::SeqCst), now.as_nanos());
        // Sealed, unset, or later than an entry can hold: one test of the highest bits.
        if (head | nanos | nanos.wrapping_add(LAP - LAST.as_nanos() - 1)) & SEALED != 0 {
            return None;
        }
        let (spot, aged) = (Spot::of(head), self.ring.aged(now));
        let entry = entries.get(index(spot))?;
        let seen = spot.seen(entry);
        if aged.has(seen) {
            let (after, next) = (self.ring.moved(head, 1), self.ring.after(spot, 1));
            state.compare_exchange(head, after, Ordering::SeqCst, Ordering::SeqCst).ok()?;
            entry.store(spot.written_at_once(now), Ordering::Release);
            let last = end(hint);
            let (found, opens) = match look_near(entries, next, last, aged) {
                Some(found) => (found, 0),
                None => self.look_far(words, next, now, last),
            };
            remember(hint, found);
            let remaining = self.distance(next, found);
            // The last one is this request.
            return Some(Ok((Logged { remaining, cost: 1, opens, reset: self.quota.period_nanos() }, head)));
        }
        let newest = self.ring.after(spot, self.length() - 1);
        let opens = self.ring.moment(seen, now)? - now.as_nanos();
        let reset = self.ring.moment(newest.seen(entries.get(index(newest))?), now)?.saturating_sub(now.as_nanos());
        let logged = Logged { remaining: 0, cost: 1, opens, reset };
        // Only if the head is unchanged was the value the entry of the lap before.
        (state.load(Ordering::SeqCst) == head).then_some(Err(logged))
    }

    /// The entry of the first request, starting here, that does not fit, anywhere in the log, and how long until this
    /// request fits.
    #[cold]
    #[inline(never)]
    fn look_far(&self, words: &[AtomicU64], next: Spot, now: Time, last: u64) -> (u64, u64) {
        let remaining = self.free(words, next, now, self.distance(next, last));
        let opens = if remaining > 0 { 0 } else { self.wait(words, next, 1, now) };
        (self.ring.after(next, remaining).place, opens)
    }
}

/// The entry of the first request, starting here, that does not fit, if it is where the last search found it or a few
/// entries further, and if this request fits.
///
/// How far it has moved since is unpredictable. A branch on it would be mispredicted half of the time, and the
/// processor would find out only after the clock was read. So a few entries are read together and counted. Entries
/// beyond the one before this request belong to another lap, and so are not old enough.
#[inline(always)]
fn look_near(entries: &[AtomicU64], next: Spot, last: u64, aged: Aged) -> Option<u64> {
    let open = last.checked_sub(1)?;
    let first = if open < next.place { next.of_next_lap(open) } else { Spot { place: open, ..next } };
    let few = entries.get(index(first)..)?.first_chunk::<FEW>()?;
    let found: u64 = few.iter().map(|entry| u64::from(aged.has(first.seen(entry)))).sum();
    // If none is old enough, the end is before this point; if all are, it may be further.
    (1..few.len() as u64).contains(&found).then_some(open + found)
}

#[inline]
fn index(spot: Spot) -> usize {
    usize::try_from(spot.place).expect("at most 2^20")
}
