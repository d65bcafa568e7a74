//! Converts the state of a limit to other terms. State is kept as a number of requests. A bucket keeps its remaining
//! tokens, up to the new burst, and refills at the new rate. A backlog keeps its number of requests. Windows and logs
//! keep their counts, so a higher limit takes effect immediately.
//!
//! If the strategy or the period of a window changes, the times of the old state do not fit the new terms. Then
//! everything that the store still remembers counts as used now. Requests that the old terms did not need are
//! missing, unless a former limit has counted them (`model.rs`).

use super::State;
use crate::{bucket::Point, terms::StoreLimit};

/// The state under new terms. `state` must have been advanced to `now`.
pub fn changed(old: &StoreLimit, state: &State, new: &StoreLimit, now: u64) -> State {
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

/// The number of used requests in the state of a limit.
pub(crate) fn used(limit: &StoreLimit, state: &State, now: u64) -> u64 {
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

/// The level of the new bucket: it has as many tokens as the old one, up to the new burst.
fn moved(old: &StoreLimit, level: Point, new: &StoreLimit, now: u64) -> Point {
    let floor = Point::at(now);
    let units = floor.units_to(old, level);
    let rest = level.minus(old, floor.after(old, units));
    let left = |limit: &StoreLimit| if limit.is_leaky() { 1 } else { limit.burst };
    let Some(units) = (units + left(new)).checked_sub(left(old)) else { return floor };
    if (old.requests, old.period) == (new.requests, new.period) {
        return floor.after(new, units).plus(new, rest);
    }
    floor.after(new, units).plus(new, Point::at(scaled(old, rest, new)))
}

/// Converts a part of a unit to the time that it takes under the new terms, rounded up. The script computes the same
/// result, because it does the same operations on doubles in the same order. The error of a double is much less than
/// the microsecond that is added.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive, and less than a unit's time")]
fn scaled(old: &StoreLimit, rest: Point, new: &StoreLimit) -> u64 {
    if rest == Point::default() {
        return 0;
    }
    let time = |limit: &StoreLimit| limit.period as f64 / limit.requests as f64;
    let share = (rest.us as f64 + rest.parts as f64 / old.requests as f64) / time(old);
    (share * time(new)).ceil() as u64 + 1
}
