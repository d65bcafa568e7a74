//! A decision on one request that nobody is in the way of: one look at the entry that it goes by, one exchange of the head,
//! and the entry is written. Nothing branches on how much time has passed: the processor then goes on to the next reading
//! of the clock before this one is there.

use super::ring::{Aged, BEFORE, LAST, Spot};
use super::{Log, end, remember};
use crate::Time;
use crate::meter::load;
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
        let head = load(state).ok().filter(|_| now <= LAST)?;
        let (spot, aged) = (Spot::of(head), self.ring.aged(now));
        let entry = entries.get(index(spot))?;
        let seen = spot.seen(entry);
        if aged.has(seen) {
            let (after, next) = (self.ring.moved(head, 1), self.ring.after(spot, 1));
            state.compare_exchange(head, after, Ordering::SeqCst, Ordering::SeqCst).ok()?;
            entry.store(spot.written(now), Ordering::Release);
            let last = end(hint);
            let found = match look_near(entries, next, last, aged) {
                Some(found) => found,
                None => self.look_far(words, next, now, last),
            };
            let remaining =
                if found < next.place { found + entries.len() as u64 - next.place } else { found - next.place };
            let opens = if remaining > 0 { 0 } else { self.wait(words, next, 1, now) };
            remember(hint, found);
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

    /// Wherever it is.
    #[cold]
    #[inline(never)]
    fn look_far(&self, words: &[AtomicU64], next: Spot, now: Time, last: u64) -> u64 {
        let start = if last < next.place { last + self.length() - next.place } else { last - next.place };
        self.ring.after(next, self.search(words, next, now, start.min(self.length() - 1))).place
    }
}

/// The place of the first request from this one on that finds no room, if it is where it was last or a few further. The
/// entry of the request before this one is not written yet, so the search ends there.
///
/// How far time has brought it since is anybody's guess. A branch that goes by it would be guessed wrong half of the time,
/// which shows only once the clock has been read: so a few entries are looked at together, and counted.
#[inline(always)]
fn look_near(entries: &[AtomicU64], next: Spot, last: u64, aged: Aged) -> Option<u64> {
    let length = entries.len() as u64;
    let spot = |place| if place < next.place { next.of_next_lap(place) } else { Spot { place, ..next } };
    let is_open = |place| entries.get(index(spot(place))).is_some_and(|entry| aged.has(spot(place).seen(entry)));
    if last != next.place && !is_open(last.checked_sub(1).unwrap_or(length - 1)) {
        return None;
    }
    let first = spot(last);
    if let Some(few) = entries.get(index(first)..).and_then(<[_]>::first_chunk::<FEW>)
        && (last >= next.place || last + few.len() as u64 <= next.place)
    {
        let (mut found, mut open) = (0, 1);
        for entry in few {
            open &= u64::from(aged.has(first.seen(entry)));
            found += open;
        }
        return (found < few.len() as u64).then_some(last + found);
    }
    let mut end = last;
    for _ in 0..FEW {
        if !is_open(end) {
            return Some(end);
        }
        end = if end + 1 < length { end + 1 } else { 0 };
    }
    None
}

#[inline]
fn index(spot: Spot) -> usize {
    usize::try_from(spot.place).expect("at most 2^20")
}
