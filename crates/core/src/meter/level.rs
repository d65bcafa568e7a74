//! Strategies whose state is one level: an admission is one compare-and-swap, and a refusal writes nothing.
//!
//! Acquire and release order the clock readings: a reading of the clock after a load of the level is not earlier than
//! the readings that are part of this level.

use std::cell::Cell;

use super::outcome::{Receipt, Stop, Taken};
use crate::{
    Standing, Time,
    supply::Supply,
    sync::{AtomicU64, Ordering},
    word::{SEALED, Sealed, load},
};

#[inline]
pub(crate) fn charge(supply: &Supply, word: &AtomicU64, now: Time, cost: u64) -> Result<Taken, Stop> {
    charge_contended(supply, word, now, cost, || {})
}

/// [`charge`], which also reports each lost race with another thread.
#[inline]
pub(crate) fn charge_contended(
    supply: &Supply,
    word: &AtomicU64,
    now: Time,
    cost: u64,
    contended: impl Fn(),
) -> Result<Taken, Stop> {
    let charge = |level, floor| Some((supply.charge(level, floor, cost)?, now));
    take(supply, word, now, cost, charge, contended)
}

pub(crate) fn reserve(supply: &Supply, word: &AtomicU64, now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
    take(supply, word, now, cost, |level, _| supply.reserve(level, now, cost, latest), || {})
}

/// Charges as much as possible of a cost that was already incurred.
pub(crate) fn incur(supply: &Supply, word: &AtomicU64, now: Time, cost: u64) -> Result<Taken, Stop> {
    let charged = Cell::new(cost);
    let place = |level, floor| {
        let (after, part) = supply.incur(level, now, cost);
        charged.set(part);
        (!supply.is_set_back(level, floor)).then_some((after, now))
    };
    let taken = take(supply, word, now, cost, place, || {})?;
    Ok(Taken { receipt: Receipt { cost: charged.get(), ..taken.receipt }, ..taken })
}

/// Replaces the level by the result of `place` for level and floor. `place` also returns the time at which the request
/// is admitted.
#[inline]
fn take(
    supply: &Supply,
    word: &AtomicU64,
    now: Time,
    cost: u64,
    place: impl Fn(u64, u64) -> Option<(u64, Time)>,
    contended: impl Fn(),
) -> Result<Taken, Stop> {
    let floor = supply.floor(now);
    let mut level = load(word)?;
    loop {
        let Some((after, at)) = place(level, floor) else {
            if !supply.is_set_back(level, floor) {
                return Err(Stop::Refused(Standing::of_level(supply, level, floor, now)));
            }
            level = restart(supply, word, level, floor)?;
            continue;
        };
        match swap(word, level, after) {
            Ok(()) => {
                let standing = Standing::of_level(supply, after, floor, now);
                return Ok(Taken { at, standing, receipt: Receipt { at: now, cost, mark: after } });
            }
            Err(moved_on) => {
                contended();
                level = moved_on?;
            }
        }
    }
}

/// Restarts a level after the clock was set back. Returns the level to continue with.
#[cold]
fn restart(supply: &Supply, word: &AtomicU64, level: u64, floor: u64) -> Result<u64, Sealed> {
    let restart = floor + supply.capacity();
    match swap(word, level, restart) {
        Ok(()) => Ok(restart),
        Err(moved_on) => moved_on,
    }
}

pub(super) fn peek(supply: &Supply, word: &AtomicU64, now: Time, cost: u64) -> Result<Standing, Stop> {
    let floor = supply.floor(now);
    let mut level = load(word)?;
    while supply.charge(level, floor, cost).is_none() {
        if !supply.is_set_back(level, floor) {
            return Err(Stop::Refused(Standing::of_level(supply, level, floor, now)));
        }
        // The level that `restart` will store. A query changes nothing.
        level = floor + supply.capacity();
    }
    Ok(Standing::of_level(supply, level, floor, now))
}

pub(super) fn standing(supply: &Supply, word: &AtomicU64, now: Time) -> Result<Standing, Sealed> {
    Ok(Standing::of_level(supply, load(word)?, supply.floor(now), now))
}

pub(crate) fn refund(
    supply: &Supply,
    word: &AtomicU64,
    receipt: &Receipt,
    clock: &impl Fn() -> Time,
) -> Result<(), Sealed> {
    lower(word, |level| supply.refund(level, receipt.at, clock(), receipt.cost, receipt.mark))
}

pub(crate) fn credit(supply: &Supply, word: &AtomicU64, cost: u64, clock: &impl Fn() -> Time) -> Result<(), Sealed> {
    lower(word, |level| supply.credit(level, clock(), cost))
}

/// Replaces the level by the level that `after` returns for it.
fn lower(word: &AtomicU64, after: impl Fn(u64) -> u64) -> Result<(), Sealed> {
    let mut level = load(word)?;
    loop {
        let after = after(level);
        if after == level {
            return Ok(());
        }
        match swap(word, level, after) {
            Ok(()) => return Ok(()),
            Err(moved_on) => level = moved_on?,
        }
    }
}

/// Replaces the level, or returns its current value.
#[inline]
pub(crate) fn swap(word: &AtomicU64, from: u64, to: u64) -> Result<(), Result<u64, Sealed>> {
    match word.compare_exchange_weak(from, to, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => Ok(()),
        Err(state) if state & SEALED == 0 => Err(Ok(state)),
        Err(_) => Err(Err(Sealed)),
    }
}
