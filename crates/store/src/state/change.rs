//! What a limit has counted, under other terms. State is kept in requests: a bucket keeps what is left, cut to the new
//! burst, and refills at the new rate; a backlog stays as many requests; windows and logs keep what they counted, so
//! that a raise helps at once.
//!
//! Where the new terms count other times than the old ones (another strategy, another period of a window), everything
//! that the store still remembers counts as used now. It never admits more than that, but a store forgets what the old
//! terms no longer needed.

use super::State;
use crate::{bucket::Point, terms::Limit};

/// The state under new terms. `state` must be that of `now`.
pub(crate) fn changed(old: &Limit, state: &State, new: &Limit, now: u64) -> State {
    match (state, State::new(new, now)) {
        (State::Bucket(level), State::Bucket(_)) => State::Bucket(moved(old, *level, new, now)),
        (State::Window { .. }, State::Window { .. }) if old.period == new.period => state.clone(),
        (State::Counter { .. }, State::Counter { .. }) if old.period == new.period => state.clone(),
        (State::Log(log), State::Log(_)) => State::Log(log.moved(old, new, now)),
        (_, fresh) => {
            let used = used(old, state, now);
            match fresh {
                State::Bucket(_) => {
                    let left = old.requests.saturating_sub(used);
                    State::Bucket(Point::at(now).after(new, new.at_once().saturating_sub(left)))
                }
                State::Window { start, .. } => State::Window { start, count: used },
                State::Counter { start, .. } => State::Counter { start, current: used, previous: 0 },
                State::Log(mut log) => {
                    log.append(now, used);
                    State::Log(log)
                }
            }
        }
    }
}

/// How many requests a limit remembers.
fn used(limit: &Limit, state: &State, now: u64) -> u64 {
    match state {
        State::Bucket(level) => {
            let units = Point::at(now).units_to(limit, *level);
            units + u64::from(Point::at(now).after(limit, units) < *level)
        }
        State::Window { count, .. } => *count,
        State::Counter { current, previous, .. } => current + previous,
        State::Log(log) => log.used(limit, log.time(now)),
    }
}

/// The level of a bucket with the same number of tokens, or a full burst if that is less.
fn moved(old: &Limit, level: Point, new: &Limit, now: u64) -> Point {
    let floor = Point::at(now);
    let units = floor.units_to(old, level);
    let rest = level.minus(old, floor.after(old, units));
    let left = |limit: &Limit| if limit.is_leaky() { 1 } else { limit.burst };
    let Some(units) = (units + left(new)).checked_sub(left(old)) else { return floor };
    if (old.requests, old.period) == (new.requests, new.period) {
        return floor.after(new, units).plus(new, rest);
    }
    floor.after(new, units).plus(new, Point::at(scaled(old, rest, new)))
}

/// A part of a unit in the time of the new terms, rounded up. A script computes the same: both use doubles in the same
/// order. Doubles are wrong by far less than the microsecond that is added.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and less than a unit's time")]
fn scaled(old: &Limit, rest: Point, new: &Limit) -> u64 {
    if rest == Point::default() {
        return 0;
    }
    let time = |limit: &Limit| limit.period as f64 / limit.requests as f64;
    let share = (rest.us as f64 + rest.parts as f64 / old.requests as f64) / time(old);
    (share * time(new)).ceil() as u64 + 1
}
