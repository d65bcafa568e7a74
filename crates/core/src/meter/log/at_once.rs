//! A decision on one request that nobody is in the way of: one look at the entry that it goes by, one exchange of the head,
//! and the entry is written. Nothing branches on how much time has passed: the processor then goes on to the next reading
//! of the clock before this one is there.

use super::ring::{Aged, BEFORE, LAP, LAST, Spot};
use super::{Log, end, remember};
use crate::Time;
use crate::meter::SEALED;
use crate::standing::Logged;
use crate::sync::{AtomicU64, Ordering};

/// How many entries are looked at together.
const FEW: usize = 4;

impl Log {
    /// The decision; none if it is not that simple. Where the log stands after a charge, with the head before it, or as
    /// it is if it was refused.
    #[inline(always)] // as in the cell: an answer that is passed on in memory costs more than the decision
    pub(crate) fn check_at_once(&self, words: &[AtomicU64], now: Time) -> Option<Result<(Logged, u64), Logged>> {
        let ([state, _, hint], entries) = words.split_first_chunk::<BEFORE>()?;
        let (head, nanos) = (state.load(Ordering::SeqCst), now.as_nanos());
        // Sealed, unset, or later than an entry can say: by the highest bit of either.
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
            // The last of all is this one.
            return Some(Ok((Logged { remaining, cost: 1, opens, reset: self.quota.period_nanos() }, head)));
        }
        let newest = self.ring.after(spot, self.length() - 1);
        let opens = self.ring.moment(seen, now)? - now.as_nanos();
        let reset = self.ring.moment(newest.seen(entries.get(index(newest))?), now)?.saturating_sub(now.as_nanos());
        let logged = Logged { remaining: 0, cost: 1, opens, reset };
        // Only then was what was read the entry of the lap before.
        (state.load(Ordering::SeqCst) == head).then_some(Err(logged))
    }

    /// The place of the first request from this one on that finds no room, wherever it is, and how long until this one does.
    #[cold]
    #[inline(never)]
    fn look_far(&self, words: &[AtomicU64], next: Spot, now: Time, last: u64) -> (u64, u64) {
        let remaining = self.free(words, next, now, self.distance(next, last));
        let opens = if remaining > 0 { 0 } else { self.wait(words, next, 1, now) };
        (self.ring.after(next, remaining).place, opens)
    }
}

/// The place of the first request from this one on that finds no room, if it is where it was last or a few further, and
/// this one finds room.
///
/// How far time has brought it since is anybody's guess. A branch that goes by it would be guessed wrong half of the time,
/// which shows only once the clock has been read: so a few entries are looked at together, and counted. Where they come to
/// the entry of the request before this one, they are of another lap, and so not open.
#[inline(always)]
fn look_near(entries: &[AtomicU64], next: Spot, last: u64, aged: Aged) -> Option<u64> {
    let open = last.checked_sub(1)?;
    let first = if open < next.place { next.of_next_lap(open) } else { Spot { place: open, ..next } };
    let few = entries.get(index(first)..)?.first_chunk::<FEW>()?;
    let found: u64 = few.iter().map(|entry| u64::from(aged.has(first.seen(entry)))).sum();
    // If none is open, it was further than it is; if all are, it may be further.
    (1..few.len() as u64).contains(&found).then_some(open + found)
}

#[inline]
fn index(spot: Spot) -> usize {
    usize::try_from(spot.place).expect("at most 2^20")
}
