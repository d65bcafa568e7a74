//! Strategies whose whole state is one level on a line: one compare-and-swap admits, a refusal writes nothing.
//!
//! The order acquired and released is that of clock readings: one taken after a level was read is not earlier than those
//! that went into it.

use super::{Left, Place, Sealed, Stop, Taken, load};
use crate::supply::{Free, Supply};
use crate::sync::{AtomicU64, Ordering};
use crate::{Standing, Time};

#[inline]
pub(super) fn check(supply: &Supply, word: &AtomicU64, now: Time, cost: u64) -> Result<Taken, Stop> {
    let mut level = load(word)?;
    loop {
        let Some(after) = supply.charge(level, now, cost) else {
            level = refused(supply, word, level, now)?;
            continue;
        };
        match swap(word, level, after) {
            Ok(()) => return Ok(taken(supply, after, now, now, cost)),
            Err(moved_on) => level = moved_on?,
        }
    }
}

pub(super) fn reserve(supply: &Supply, word: &AtomicU64, now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
    let mut level = load(word)?;
    loop {
        let Some((after, at)) = supply.reserve(level, now, cost, latest) else {
            level = refused(supply, word, level, now)?;
            continue;
        };
        match swap(word, level, after) {
            Ok(()) => return Ok(taken(supply, after, at, now, cost)),
            Err(moved_on) => level = moved_on?,
        }
    }
}

fn taken(supply: &Supply, after: u64, at: Time, now: Time, cost: u64) -> Taken {
    Taken { at, standing: Standing::of_line(supply, after, now), place: Place { at: now, cost, mark: after } }
}

/// A refusal; or the level to try again with, if the clock was set back.
#[cold]
fn refused(supply: &Supply, word: &AtomicU64, level: u64, now: Time) -> Result<u64, Stop> {
    match supply.after_set_back(level, now) {
        None => Err(Stop::Refused(Standing::of_line(supply, level, now))),
        Some(restart) => match swap(word, level, restart) {
            Ok(()) => Ok(restart),
            Err(moved_on) => Ok(moved_on?),
        },
    }
}

pub(super) fn ask(supply: &Supply, word: &AtomicU64, now: Time, cost: u64) -> Result<Standing, Stop> {
    let mut level = load(word)?;
    while supply.charge(level, now, cost).is_none() {
        level = refused(supply, word, level, now)?;
    }
    Ok(Standing::of_line(supply, level, now))
}

pub(super) fn standing(supply: &Supply, word: &AtomicU64, now: Time) -> Result<Standing, Sealed> {
    Ok(Standing::of_line(supply, load(word)?, now))
}

pub(super) fn refund(
    supply: &Supply,
    word: &AtomicU64,
    place: &Place,
    clock: &impl Fn() -> Time,
) -> Result<(), Sealed> {
    let mut level = load(word)?;
    loop {
        let after = supply.refund(level, place.at, clock(), place.cost, place.mark);
        if after == level {
            return Ok(());
        }
        match swap(word, level, after) {
            Ok(()) => return Ok(()),
            Err(moved_on) => level = moved_on?,
        }
    }
}

pub(super) fn left(supply: &Supply, word: &AtomicU64, since: Time) -> Left {
    let level = word.load(Ordering::SeqCst) & !super::SEALED;
    let left = match supply.free(level, since) {
        Free::Left(left) => left,
        Free::Owed(_) => 0,
    };
    Left { left, unit: supply.unit(), burst: supply.capacity() / supply.unit() }
}

/// Moves the level on, or says what it is now.
#[inline]
fn swap(word: &AtomicU64, from: u64, to: u64) -> Result<(), Result<u64, Sealed>> {
    match word.compare_exchange_weak(from, to, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => Ok(()),
        Err(state) if state & super::SEALED == 0 => Err(Ok(state)),
        Err(_) => Err(Err(Sealed)),
    }
}
