//! The fast path of a decision: one load of the entry that decides, one swap of the head, one store of the entry. No
//! branch depends on the elapsed time, so the processor continues to the next clock reading before this reading is
//! complete.

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

/// The number of entries that are examined together.
const FEW: usize = 4;

impl Log {
    /// Decides on a request of cost 1. None if the decision needs the slow path. Returns the standing after a charge,
    /// with the head before the charge, or the unchanged standing after a refusal.
    #[inline(always)] // without inlining, the answer goes through memory
    pub(crate) fn charge_at_once(&self, words: &[AtomicU64], now: Time) -> Option<Result<(Logged, u64), Logged>> {
        let ([state, _, hint], entries) = words.split_first_chunk::<BEFORE>()?;
        let (head, nanos) = (state.load(Ordering::SeqCst), now.as_nanos());
        // One test of the highest bits covers three cases: the head is sealed, the head is unset, or the time is too
        // late for an entry.
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
            // The newest request of the log is this request.
            return Some(Ok((Logged { remaining, cost: 1, opens, reset: self.quota.period_nanos() }, head)));
        }
        let newest = self.ring.after(spot, self.length() - 1);
        let opens = self.ring.moment(seen, now)? - now.as_nanos();
        let reset = self.ring.moment(newest.seen(entries.get(index(newest))?), now)?.saturating_sub(now.as_nanos());
        let logged = Logged { remaining: 0, cost: 1, opens, reset };
        // The value is from the previous lap only if the head is unchanged.
        (state.load(Ordering::SeqCst) == head).then_some(Err(logged))
    }

    /// Searches the whole log, starting at `next`. Returns the entry of the first request that does not fit, and the
    /// time until this request fits.
    #[cold]
    #[inline(never)]
    fn look_far(&self, words: &[AtomicU64], next: Spot, now: Time, last: u64) -> (u64, u64) {
        let remaining = self.free(words, next, now, self.distance(next, last));
        let opens = if remaining > 0 { 0 } else { self.wait(words, next, 1, now) };
        (self.ring.after(next, remaining).place, opens)
    }
}

/// Searches a few entries, starting at the result of the last search. Returns the entry of the first request that does
/// not fit, if it is among them and the next request fits.
///
/// The distance from the last result is unpredictable. A branch on this distance would be mispredicted half of the
/// time, and the processor would detect this only after the clock was read. So a few entries are read together and
/// counted. Entries behind the previous request's entry belong to another lap, so they are not old enough.
#[inline(always)]
fn look_near(entries: &[AtomicU64], next: Spot, last: u64, aged: Aged) -> Option<u64> {
    let open = last.checked_sub(1)?;
    let first = if open < next.place { next.of_next_lap(open) } else { Spot { place: open, ..next } };
    let few = entries.get(index(first)..)?.first_chunk::<FEW>()?;
    let found: u64 = few.iter().map(|entry| u64::from(aged.has(first.seen(entry)))).sum();
    // If no entry is old enough, the end is before this point. If all entries are, the end may be further.
    (1..few.len() as u64).contains(&found).then_some(open + found)
}

#[inline]
fn index(spot: Spot) -> usize {
    usize::try_from(spot.place).expect("at most 2^20")
}
