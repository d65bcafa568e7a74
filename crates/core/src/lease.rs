//! A limit that many cores admit by at once.
//!
//! One word gains nothing from a second core: each charge has to fetch its cache line from the core that charged before. So
//! once threads are seen to get in each other's way, a limiter on a line (see `supply`) hands out *leases*: a slot for each
//! core, with some seats in a row that were charged to the word at once. A thread takes seats from its own slot and meets
//! others only when that is empty.
//!
//! This stays exact. A seat is taken once, and only while it lies between floor and ceiling of the moment: what the floor
//! has passed by is lost, leased or not, as it would be in the bucket. And little is stranded:
//!
//! - A lease is a share of what is free, so all slots together hold a small part of it, and leases shrink as the limit comes
//!   near. When there is too little for a lease, what is still leased to anybody is used up first, and then each charge
//!   goes to the word. (What costs more than one needs its seats in one slot.)
//! - Until then, whoever fetches a lease looks at one other slot. If half the time after which its seats are lost has passed, it takes
//!   over those instead. So what one core does not use reaches another after as many fetches as there are slots.
//!
//! Something is lost under bursts and lulls: a slot is left with seats when its threads fall silent, others use the seats
//! behind them, and the floor passes unused seats while the bucket is not full. By the word alone those would have
//! been admitted. Measured with 2 to 15 slots in 144 patterns of 20,000 requests: 0.08 % of what the word admits, and 1.3 %
//! in the worst pattern, which has peaks of 20 times the rate.

use crate::meter::line::{self, swap};
use crate::meter::{Place, SEALED, Sealed, Stop, Taken, load};
use crate::supply::Supply;
use crate::sync::{AtomicU64, Ordering, known_slot, own_slot, slots, yield_now};
use crate::{Standing, Time};

/// Requests of a lease, at least: fewer are not worth it.
const LEAST: u64 = 8;

/// Requests of a lease that need no more of them to be worth it: what is leased and not used in time is lost.
const ENOUGH: u64 = 64;

/// The slot's owner is about to put a lease there. None is left meanwhile.
const FILLING: u64 = 1 << 63;

/// A step of the tag, which tells apart what a slot held at different times.
const TAG: u64 = 1 << 32;

/// A slot's own seal: with it the lower half is negative, so that no cost is met by what is left there.
const CLOSED: u64 = 1 << 31;

/// How often a slot is tried that another thread is filling, which takes a few nanoseconds.
const PATIENCE: usize = if cfg!(loom) { 2 } else { 100 };

/// Requests left in a slot.
const LEFT: u64 = CLOSED - 1;

#[derive(Debug)]
pub(crate) struct Leases {
    slots: Box<[Slot]>,
}

/// Alone on its cache lines, two of which some processors fetch together.
#[derive(Debug)]
#[repr(align(128))]
struct Slot {
    /// Filling or not, tag, closed or not, requests left.
    state: AtomicU64,
    /// The level at which the last of its seats ends. Written only while filling.
    end: AtomicU64,
    /// Where the floor was when the lease was put here. Written only while filling.
    since: AtomicU64,
}

impl Leases {
    /// None if the burst is too small to lend any of it.
    pub(crate) fn of(supply: &Supply) -> Option<Self> {
        let slots = slots();
        let empty = |_| Slot { state: AtomicU64::new(0), end: AtomicU64::new(0), since: AtomicU64::new(0) };
        let leases = Self { slots: (0..slots).map(empty).collect() };
        (supply.lends() && leases.size(supply, 0, 0).is_some()).then_some(leases)
    }

    /// Requests of a lease: a share of what is free, so that all slots together hold no more than an eighth of it, and a
    /// 64th where that makes [`ENOUGH`] of them. None if it is too little.
    fn size(&self, supply: &Supply, level: u64, floor: u64) -> Option<u64> {
        let free = (floor + supply.capacity()).saturating_sub(level.max(floor)) / supply.unit();
        let share = free / self.slots.len() as u64;
        Some((share / 8).min((share / 64).max(ENOUGH)).min(LEFT)).filter(|&size| size >= LEAST)
    }

    /// Seats from the own slot, if that takes one look. Their end, as the mark of a charge.
    #[inline(always)] // as in `Limiter::check`
    pub(crate) fn take_at_once(&self, supply: &Supply, floor: u64, cost: u64) -> Option<u64> {
        // A thread that has no slot yet is beyond all of them.
        let own = self.slots.get(known_slot())?;
        own.take_at_once(supply, floor, cost, |units| supply.whole_or_less(units))?.ok()
    }

    pub(crate) fn check(&self, supply: &Supply, word: &AtomicU64, now: Time, cost: u64) -> Result<Taken, Stop> {
        let floor = supply.floor(now);
        let own = own_slot();
        match self.slots[own].take(supply, floor, cost)? {
            Some(end) => Ok(taken(supply, end, floor, now, cost, word)),
            None => self.fetch(own, supply, word, now, cost),
        }
    }

    /// The own slot has not enough: with a lease for the requests to come if there is plenty, and else what others have
    /// leased before the word.
    #[cold]
    fn fetch(&self, own: usize, supply: &Supply, word: &AtomicU64, now: Time, cost: u64) -> Result<Taken, Stop> {
        let (floor, slot, level) = (supply.floor(now), &self.slots[own], load(word)?);
        if supply.is_set_back(level, floor) {
            self.forget(supply, floor);
        }
        if self.size(supply, level, floor).is_none() {
            for slot in &self.slots {
                if let Some(end) = slot.take(supply, floor, cost)? {
                    return Ok(taken(supply, end, floor, now, cost, word));
                }
            }
        } else if let Some(filling) = slot.begin(floor) {
            let lease = match self.expiring(own, &filling, supply, floor)? {
                None => self.borrow(supply, word, floor)?,
                lease => lease,
            };
            let (end, left) = lease.unwrap_or_default();
            slot.since.store(floor, Ordering::Relaxed);
            if left >= cost {
                slot.fill(filling, end, left - cost);
                let end = end - (left - cost) * supply.unit();
                return Ok(taken(supply, end, floor, now, cost, word));
            }
            slot.fill(filling, end, left);
        }
        self.last_resort(supply, word, now, cost)
    }

    /// The word; and before a refusal, the seats that somebody was just putting into a slot.
    fn last_resort(&self, supply: &Supply, word: &AtomicU64, now: Time, cost: u64) -> Result<Taken, Stop> {
        let floor = supply.floor(now);
        for _ in 0..PATIENCE {
            let refused = match line::check(supply, word, now, cost) {
                Err(refused @ Stop::Refused(_)) => refused,
                decided => return decided,
            };
            let filling = self.slots.iter().any(|slot| slot.state.load(Ordering::Acquire) & FILLING != 0);
            for slot in &self.slots {
                if let Some(end) = slot.take(supply, floor, cost)? {
                    return Ok(taken(supply, end, floor, now, cost, word));
                }
            }
            if !filling {
                return Err(refused);
            }
            // Stopped by the system in between, perhaps: a few turns, then it is refused all the same.
            yield_now();
        }
        line::check(supply, word, now, cost)
    }

    /// The clock was set back. The word is about to start again below the seats that are leased, and will pass them later:
    /// they would be there twice.
    #[cold]
    fn forget(&self, supply: &Supply, floor: u64) {
        for slot in &self.slots {
            let Ok(state) = slot.load() else { return };
            if state & FILLING == 0 && supply.is_set_back(slot.end.load(Ordering::Acquire), floor) {
                // Taken meanwhile by a thread that reads the clock as it was: then that thread had them.
                slot.swap(state, (state & !LEFT).wrapping_add(TAG) & !FILLING);
            }
        }
    }

    /// A lease from the word, if there is plenty.
    fn borrow(&self, supply: &Supply, word: &AtomicU64, floor: u64) -> Result<Option<(u64, u64)>, Sealed> {
        let mut level = load(word)?;
        while let Some(size) = self.size(supply, level, floor) {
            let after = level.max(floor) + size * supply.unit();
            match swap(word, level, after) {
                Ok(()) => return Ok(Some((after, size))),
                Err(moved_on) => level = moved_on?,
            }
        }
        Ok(None)
    }

    /// The lease of another slot, if half the time after which it is lost has passed.
    fn expiring(
        &self,
        own: usize,
        filling: &Filling,
        supply: &Supply,
        floor: u64,
    ) -> Result<Option<(u64, u64)>, Sealed> {
        let others = self.slots.len() as u64 - 1;
        if others == 0 {
            return Ok(None);
        }
        let next = usize::try_from(filling.tag() % others).unwrap_or(0) + 1;
        let other = &self.slots[(own + next) % self.slots.len()];
        other.take_over(supply, floor)
    }

    /// Gives back seats that end at `place.mark`: into a slot, so that they keep their place on the line.
    pub(crate) fn refund(&self, supply: &Supply, place: &Place) {
        let (others, own) = self.slots.split_at(own_slot());
        for _ in 0..PATIENCE {
            if own.iter().chain(others).any(|slot| slot.put_back(supply, place.mark, place.cost)) {
                return;
            }
            yield_now();
        }
        // All of them are being filled all the while: the seats stay charged.
    }

    /// How many units are leased and still there.
    pub(crate) fn left(&self, supply: &Supply, floor: u64) -> u64 {
        self.slots.iter().map(|slot| slot.left(supply, floor) * supply.unit()).sum()
    }

    /// Makes all slots final.
    pub(crate) fn seal(&self) {
        for slot in &self.slots {
            slot.state.fetch_or(CLOSED, Ordering::SeqCst);
        }
    }
}

/// Where the limit stands is told by the word: what others have leased counts as gone.
#[inline]
fn taken(supply: &Supply, end: u64, floor: u64, now: Time, cost: u64, word: &AtomicU64) -> Taken {
    let level = word.load(Ordering::Relaxed) & !SEALED;
    Taken { at: now, standing: Standing::of_line(supply, level, floor, now), place: Place { at: now, cost, mark: end } }
}

/// The right to fill a slot.
struct Filling {
    state: u64,
}

impl Filling {
    fn tag(&self) -> u64 {
        (self.state & !FILLING) / TAG
    }
}

impl Slot {
    /// Takes requests from the slot, if it has as many. Returns the level at which their seats end, or that the slot changed
    /// meanwhile. `whole` says how many requests are in so many units, or one less.
    #[inline(always)] // as in `Limiter::check`
    fn take_at_once(
        &self,
        supply: &Supply,
        floor: u64,
        cost: u64,
        whole: impl Fn(u64) -> u64,
    ) -> Option<Result<u64, ()>> {
        let state = self.state.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Acquire);
        // Closed, it is negative.
        let left = (state << 32).cast_signed() >> 32;
        if left < cost.min(CLOSED).cast_signed() {
            return None;
        }
        let left = left.cast_unsigned();
        // Beyond the ceiling is what a clock that lags must not take; and below the floor, so far beyond that it is one
        // comparison, what is lost.
        let here = end.wrapping_sub(floor);
        if here > supply.capacity() {
            return None;
        }
        // Of a lease that the floor has begun to pass by, what lies above it.
        let passed = if left * supply.unit() <= here { 0 } else { left - whole(here) };
        if left - passed < cost {
            return None;
        }
        let swapped =
            self.state.compare_exchange(state, state - passed - cost, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        Some(if swapped { Ok(end - (left - passed - cost) * supply.unit()) } else { Err(()) })
    }

    fn take(&self, supply: &Supply, floor: u64, cost: u64) -> Result<Option<u64>, Sealed> {
        loop {
            self.load()?;
            match self.take_at_once(supply, floor, cost, |units| units / supply.unit()) {
                Some(Err(())) => {}
                taken => return Ok(taken.and_then(Result::ok)),
            }
        }
    }

    /// Takes all that is left, if half the time has passed after which it is lost. Returns its end, and how much.
    fn take_over(&self, supply: &Supply, floor: u64) -> Result<Option<(u64, u64)>, Sealed> {
        let state = self.load()?;
        let (end, since) = (self.end.load(Ordering::Acquire), self.since.load(Ordering::Relaxed));
        let here = end.saturating_sub(floor);
        let left = (state & LEFT).min(here / supply.unit());
        if left == 0 || state & FILLING != 0 || floor.saturating_sub(since) < here {
            return Ok(None);
        }
        Ok(self.swap(state, state & !LEFT).then_some((end, left)))
    }

    /// The right to fill the slot if it is empty.
    fn begin(&self, floor: u64) -> Option<Filling> {
        let state = self.load().ok()?;
        let is_empty = state & LEFT == 0 || self.end.load(Ordering::Acquire) <= floor;
        (is_empty && state & FILLING == 0).then(|| self.lock(state))?
    }

    /// The right to fill the slot. Only one thread at a time has it; the others of this slot go to the word meanwhile.
    fn lock(&self, state: u64) -> Option<Filling> {
        let next = (state & !LEFT).wrapping_add(TAG) & !FILLING;
        self.swap(state, next | FILLING).then_some(Filling { state: next })
    }

    #[expect(clippy::needless_pass_by_value, reason = "the right is used once")]
    fn fill(&self, filling: Filling, end: u64, left: u64) {
        self.end.store(end, Ordering::Release);
        // Closed meanwhile: what is left stays charged.
        self.swap(filling.state | FILLING, filling.state | left);
    }

    /// Puts seats back that end at `mark`. Those of a slot lie in a row, so they may count as lower seats than they are:
    /// lost to the floor sooner, never used later. False if the slot is being filled.
    fn put_back(&self, supply: &Supply, mark: u64, cost: u64) -> bool {
        let Ok(state) = self.load() else { return true };
        let (left, end) = (state & LEFT, self.end.load(Ordering::Acquire));
        let (units, start) = (cost * supply.unit(), end.saturating_sub(left * supply.unit()));
        if left + cost > LEFT || state & FILLING != 0 {
            return false;
        }
        if left > 0 && start == mark {
            return self.swap(state, state + cost);
        }
        let Some(filling) = self.lock(state) else { return false };
        let below = mark - units;
        let first = if left == 0 || below < start { below } else { start.saturating_sub(units) };
        self.fill(filling, first + (left + cost) * supply.unit(), left + cost);
        true
    }

    fn left(&self, supply: &Supply, floor: u64) -> u64 {
        let (state, end) = (self.state.load(Ordering::SeqCst), self.end.load(Ordering::Acquire));
        if state & FILLING != 0 { 0 } else { (state & LEFT).min(end.saturating_sub(floor) / supply.unit()) }
    }

    fn load(&self) -> Result<u64, Sealed> {
        let state = self.state.load(Ordering::SeqCst);
        if state & CLOSED == 0 { Ok(state) } else { Err(Sealed) }
    }

    /// Whether the state was the first of these, and is now the second.
    fn swap(&self, from: u64, to: u64) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
