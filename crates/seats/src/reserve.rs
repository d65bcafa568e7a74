//! Keeps a part of a limit free for programs that are cut off from the counter. Each of them decides with its share:
//! the limits divided by the number of sharers, which begins without credit. The counter charges what the shares can
//! use, so that all programs together stay within the limit.
//!
//! The counter charges only the shares of programs that are cut off now. A program that comes back first reports the
//! units that its share used and that still count ([`owed`](crate::Take::owed)), so its reserve can end.
//!
//! A share has at least one unit. If there are more sharers than units, the shares of many programs together exceed
//! the limit, and no reserve can prevent that.

use weir_core::Strategy;

use crate::{
    bucket::{Point, capacity},
    state::{State, start_of},
    terms::Limit,
    value::Value,
};

/// The programs that are cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The number of programs that are cut off now.
    pub programs: u32,
    /// The sum of the times for which programs were cut off since the last reservation, in microseconds.
    pub elapsed: u64,
    /// The number of programs that divide the limits. At least 1.
    pub sharers: u32,
}

/// The units of one key that are reserved now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    stamp: u64,
    /// The part of the elapsed time that is less than a microsecond of the level, times the number of sharers.
    rest: u64,
    /// For each limit that is not a bucket: the start of the window or the time in the log, and the reserved units.
    /// Empty if nothing is reserved.
    units: Vec<(u64, u64)>,
}

impl Reserved {
    /// Adjusts what is reserved of a key, at `now`. Call this immediately before the value answers a question.
    pub fn update(&mut self, value: &mut Value, absent: Absent, now: u64) {
        if self.stamp != value.stamp {
            // Units that were reserved under other terms stay charged.
            (self.stamp, self.units) = (value.stamp, Vec::new());
        }
        if absent.programs == 0 && absent.elapsed == 0 && self.units.is_empty() {
            return;
        }
        let sharers = u64::from(absent.sharers.max(1));
        if self.units.is_empty() {
            // A fraction of a microsecond counts as a whole one.
            self.rest = sharers - 1;
        }
        let elapsed = absent.elapsed.saturating_add(self.rest);
        let moved = elapsed / sharers;
        self.rest = elapsed % sharers;
        self.units.resize(value.limits.len(), (0, 0));
        for ((limit, state), units) in value.limits.iter().zip(&mut value.states).zip(&mut self.units) {
            state.advance(limit, now);
            let part = u64::from(absent.programs).saturating_mul(share(limit, sharers));
            match state {
                State::Bucket(level) => *level = reserved_level(limit, *level, (moved, part), now),
                State::Window { .. } | State::Counter { .. } => {
                    reserve_window(limit, state, units, part.min(limit.requests), now);
                }
                State::Log(_) => reserve_log(limit, state, units, part.min(limit.requests), now),
            }
        }
        if absent.programs == 0 {
            self.units.clear();
        }
    }
}

/// The units that a share can use at the same time.
fn share(limit: &Limit, sharers: u64) -> u64 {
    match limit.strategy {
        Strategy::LeakyBucket => 1,
        Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => {
            (limit.requests / sharers).max(1)
        }
        _ => (limit.burst / sharers).max(1) + limit.debt / sharers,
    }
}

/// The level after the shares took their part of the supply for `moved` microseconds. The credit that they can have
/// saved is not available to others. One unit always is, so that a small bucket does not starve.
fn reserved_level(limit: &Limit, level: Point, (moved, part): (u64, u64), now: u64) -> Point {
    let full = Point::at(now).plus(limit, capacity(limit));
    let taken = level.plus(limit, Point::at(moved)).min(full).max(level);
    let saved = Point::at(now).after(limit, part.min(limit.at_once().saturating_sub(1)));
    taken.max(saved)
}

/// Reserves `part` units of the current window.
fn reserve_window(limit: &Limit, state: &mut State, units: &mut (u64, u64), part: u64, now: u64) {
    let start = start_of(limit, now);
    let (before, charged) = *units;
    let charged = if before == start { charged } else { 0 };
    match state {
        State::Window { count, .. } => *count = (*count + part).saturating_sub(charged),
        State::Counter { current, previous, .. } => {
            // The shares could use the window before, too, although no question came then.
            if before < start && before + limit.period != start {
                *previous += part;
            }
            *current = (*current + part).saturating_sub(charged);
        }
        State::Bucket(_) | State::Log(_) => {}
    }
    *units = (start, part);
}

/// Reserves `part` units of each period. Units of a log are never taken back: they expire.
fn reserve_log(limit: &Limit, state: &mut State, units: &mut (u64, u64), part: u64, now: u64) {
    let (at, charged) = *units;
    if charged == 0 || now >= at + limit.period {
        state.charge(limit, now, part);
        *units = (now, part);
    } else if part > charged {
        state.charge(limit, now, part - charged);
        *units = (at, part);
    }
}
