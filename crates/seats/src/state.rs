//! The state of one limit, and what the limit allows at one instant of the store's clock. The code here has no side
//! effects, and it never decides for several limits.

mod change;
mod log;

use weir_core::Strategy;
pub use weir_wire::Mark;

pub use self::change::changed;
pub(crate) use self::change::used;
use self::log::Log;
use crate::{
    bucket::{Point, capacity},
    terms::{DAY, StoreLimit},
};

/// The state of one limit. Its form depends on the strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The level of a bucket.
    Bucket(Point),
    /// A fixed window.
    Window {
        /// The start of the window.
        start: u64,
        /// The units that were charged in it.
        count: u64,
    },
    /// A sliding window counter.
    Counter {
        /// The start of the current window.
        start: u64,
        /// The units that were charged in the current window.
        current: u64,
        /// The units that were charged in the previous window.
        previous: u64,
    },
    /// A sliding window log.
    Log(Log),
}

/// The range of seats that the store can hand out in advance: it begins one *guard* after the store's time, and ends at
/// the *lookahead*.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// Seats of a bucket begin this long after now, so that they do not expire on their way to the program.
    pub guard: u64,
    /// The longest time from now until a seat can be used.
    pub lookahead: u64,
}

impl State {
    /// The state of a limit that has counted nothing.
    pub fn new(limit: &StoreLimit, now: u64) -> Self {
        let start = start_of(limit, now);
        match limit.strategy {
            Strategy::FixedWindow => Self::Window { start, count: 0 },
            Strategy::SlidingWindowCounter => Self::Counter { start, current: 0, previous: 0 },
            Strategy::SlidingWindowLog => Self::Log(Log::new(limit)),
            _ => Self::Bucket(Point::at(now)),
        }
    }

    /// Moves the state to `now`. A state that is more than a day ahead shows that the clock was set back. Then the
    /// limit is used up, and refills from `now`.
    pub fn advance(&mut self, limit: &StoreLimit, now: u64) {
        let window = start_of(limit, now);
        match self {
            Self::Bucket(level) => {
                let latest = Point::at(now + DAY).plus(limit, capacity(limit));
                *level = if *level > latest { Point::at(now).plus(limit, capacity(limit)) } else { *level };
                *level = (*level).max(Point::at(now));
            }
            Self::Window { start, count } => {
                if *start > now + DAY {
                    (*start, *count) = (window, limit.requests);
                } else if *start < window {
                    (*start, *count) = (window, 0);
                }
            }
            Self::Counter { start, .. } => {
                if *start > now + DAY {
                    *self = Self::Counter { start: window, current: limit.requests, previous: 0 };
                } else {
                    self.roll(limit, window);
                }
            }
            Self::Log(log) => log.advance(now),
        }
    }

    /// Moves a counter to a later window.
    fn roll(&mut self, limit: &StoreLimit, to: u64) {
        if let Self::Counter { start, current, previous } = self
            && *start < to
        {
            *previous = if *start + limit.period == to { *current } else { 0 };
            (*start, *current) = (to, 0);
        }
    }

    /// The current position of the limit. A caller sends it back as `seen`.
    pub fn mark(&self, limit: &StoreLimit, now: u64) -> Mark {
        match self {
            Self::Log(log) => [log.time(now), log.used(limit, log.time(now)), 0],
            _ => self.numbers(),
        }
    }

    /// Raises the state to the position that a caller has seen.
    pub fn raise(&mut self, limit: &StoreLimit, [a, b, c]: Mark) {
        match self {
            Self::Bucket(level) => *level = (*level).max(Point { us: a, parts: b }),
            Self::Window { start, count } => {
                if (a, b) > (*start, *count) {
                    (*start, *count) = (a, b);
                }
            }
            Self::Counter { start, .. } => {
                let latest = a.max(*start);
                let mut seen = Self::Counter { start: a, current: b, previous: c };
                seen.roll(limit, latest);
                self.roll(limit, latest);
                if let (
                    Self::Counter { current, previous, .. },
                    Self::Counter { current: seen, previous: seen_before, .. },
                ) = (self, seen)
                {
                    (*current, *previous) = ((*current).max(seen), (*previous).max(seen_before));
                }
            }
            Self::Log(log) => log.raise(limit, a, b),
        }
    }

    /// Converts a mark that a counter with another clock made. That clock was up to `margin` behind the clock of `now`,
    /// or ahead of it by any time. The result never allows more than the mark did at that time.
    pub fn rebased(limit: &StoreLimit, [a, b, c]: Mark, now: u64, margin: u64) -> Mark {
        let window = start_of(limit, now);
        match limit.strategy {
            Strategy::FixedWindow | Strategy::SlidingWindowCounter => {
                let is_recent = a < window && a + limit.period + margin > now;
                if a > window || is_recent { [window, b, c] } else { [a, b, c] }
            }
            Strategy::SlidingWindowLog => [(a + margin).min(now), b, c],
            _ => {
                let full = Point::at(now).plus(limit, capacity(limit));
                let later = Point { us: a + margin, parts: b }.min(full);
                [later.us, later.parts, 0]
            }
        }
    }

    /// Raises a state that is known only from levels, as they were at any times. A log counts their units as late as
    /// possible.
    pub fn raise_latest(&mut self, limit: &StoreLimit, seen: Mark) {
        match self {
            Self::Log(log) => log.raise_latest(seen[0], seen[1]),
            _ => self.raise(limit, seen),
        }
    }

    /// Makes the state what it is if all units were charged later. `now` is after this delay.
    pub fn delay(&mut self, limit: &StoreLimit, by: u64, now: u64) {
        if let Self::Log(log) = self {
            return log.delay(by, now);
        }
        if let Some(later) = Self::of_numbers(limit, Self::rebased(limit, self.numbers(), now, by)) {
            *self = later;
        }
    }

    /// Takes back units that end at this mark, if other requests can still use them.
    pub fn give_back(&mut self, limit: &StoreLimit, now: u64, [a, b, _]: Mark, units: u64) {
        match self {
            Self::Bucket(level) => {
                if *level == (Point { us: a, parts: b }) {
                    *level = level.before(limit, units).max(Point::at(now));
                }
            }
            Self::Window { start, count } => {
                if *start == a {
                    *count = count.saturating_sub(units);
                }
            }
            Self::Counter { start, current, previous } => {
                if *start == a {
                    *current = current.saturating_sub(units);
                } else if *start == a + limit.period {
                    *previous = previous.saturating_sub(units);
                }
            }
            Self::Log(log) => log.give_back(a, units),
        }
    }

    /// Takes back units of any earlier requests. The limit has at most full credit.
    pub fn credit(&mut self, limit: &StoreLimit, now: u64, units: u64) {
        if let Self::Log(log) = self {
            log.forget_newest(limit, now, units);
        } else {
            // These units end at the current mark, so all of them are free again.
            self.give_back(limit, now, self.numbers(), units);
        }
    }

    /// Charges units, even if they exceed the limit.
    pub fn charge(&mut self, limit: &StoreLimit, now: u64, units: u64) {
        match self {
            Self::Bucket(level) => *level = level.after(limit, units),
            Self::Window { count, .. } => *count += units,
            Self::Counter { current, .. } => *current += units,
            Self::Log(log) => log.charge(limit, now, units),
        }
    }

    /// Charges units that were admitted without the store. The debt of a bucket is at most one day of refill.
    pub fn owe(&mut self, limit: &StoreLimit, now: u64, units: u64) {
        self.charge(limit, now, units);
        if let Self::Bucket(level) = self {
            *level = (*level).min(Point::at(now + DAY).plus(limit, capacity(limit)));
        }
    }

    /// The number of requests with this cost, at most `want`, that the limit admits now. If the strategy has slots, it
    /// also includes those that it admits within `patience`.
    pub fn fits(&self, limit: &StoreLimit, now: u64, (want, cost): (u64, u64), patience: u64) -> u64 {
        if cost > limit.most() {
            return 0;
        }
        let free = match self {
            Self::Bucket(level) if limit.is_leaky() => {
                let latest = Point::at(now + patience);
                if *level > latest {
                    return 0;
                }
                // The first request goes when the time reaches the level. Each other request goes after the
                // previous one.
                let slots = level.units_to(limit, latest) / cost + 1;
                let fits = level.units_to(limit, Point::at(now).after(limit, limit.most())) / cost;
                return slots.min(fits).min(want);
            }
            Self::Bucket(level) => level.units_to(limit, Point::at(now + patience).plus(limit, capacity(limit))),
            Self::Log(log) => return log.fits(limit, now, want * cost) / cost,
            Self::Window { .. } | Self::Counter { .. } => self.room(limit, now),
        };
        (free / cost).min(want)
    }

    /// The number of free units in the window.
    fn room(&self, limit: &StoreLimit, now: u64) -> u64 {
        match self {
            Self::Window { count, .. } => limit.requests.saturating_sub(*count),
            Self::Counter { start, current, previous } => {
                let rest = limit.period - now.saturating_sub(*start).min(limit.period);
                let weight = (u128::from(*previous) * u128::from(rest)).div_ceil(u128::from(limit.period));
                let used = u64::try_from(weight).unwrap_or(u64::MAX).saturating_add(*current);
                limit.requests.saturating_sub(used)
            }
            Self::Bucket(_) | Self::Log(_) => 0,
        }
    }

    /// The number of seats that can be handed out in advance, and the mark at which they begin.
    pub fn lendable(&self, limit: &StoreLimit, now: u64, reach: Reach) -> (u64, Mark) {
        let (room, mark) = match self {
            Self::Bucket(level) => {
                let start = (*level).max(Point::at(now + reach.guard));
                let end = Point::at(now + reach.lookahead).plus(limit, capacity(limit));
                (start.units_to(limit, end), [start.us, start.parts, 0])
            }
            _ => (self.room(limit, now), self.mark(limit, now)),
        };
        (if limit.gives_in_advance() { room / 4 } else { 0 }, mark)
    }

    /// Charges seats that begin at this mark.
    pub fn lend(&mut self, limit: &StoreLimit, now: u64, [a, b, _]: Mark, units: u64) {
        if let Self::Bucket(level) = self {
            *level = Point { us: a, parts: b };
        }
        self.charge(limit, now, units);
    }

    /// The time at which a request with this cost can proceed if no other request is charged before. None if it can
    /// never proceed.
    pub fn opens(&self, limit: &StoreLimit, now: u64, cost: u64) -> Option<u64> {
        let spare = limit.most().checked_sub(cost)?;
        let opens = match self {
            Self::Bucket(level) if limit.is_leaky() => level.rounded_up(),
            Self::Bucket(level) => level.after(limit, cost).minus(limit, capacity(limit)).rounded_up(),
            Self::Window { start, count } => {
                if *count <= spare {
                    now
                } else {
                    start + limit.period
                }
            }
            Self::Counter { start, current, previous } => {
                let this = spare.checked_sub(*current).map(|room| opens_after(limit, room, *previous));
                match this.filter(|&at| at < limit.period) {
                    Some(at) => start + at,
                    None => start + limit.period + opens_after(limit, spare, *current),
                }
            }
            Self::Log(log) => log.opens(limit, cost).unwrap_or(now),
        };
        Some(opens.max(now))
    }

    /// The time from which the limit is at full credit again. Then the state can be forgotten.
    pub fn full_at(&self, limit: &StoreLimit) -> u64 {
        match self {
            Self::Bucket(level) => level.rounded_up(),
            Self::Window { count: 0, .. } | Self::Counter { current: 0, previous: 0, .. } => 0,
            Self::Window { start, .. } | Self::Counter { start, current: 0, .. } => start + limit.period,
            Self::Counter { start, .. } => start + 2 * limit.period,
            Self::Log(log) => log.full_at(limit),
        }
    }

    /// The number of times for which a log has memory. Other states need no memory.
    pub fn memory(&self) -> usize {
        if let Self::Log(log) = self { log.memory() } else { 0 }
    }

    /// Returns true if the state can need more memory.
    pub fn can_grow(&self) -> bool {
        matches!(self, Self::Log(log) if log.can_grow())
    }

    /// The numbers of this state in a store's value.
    pub fn numbers(&self) -> Mark {
        match self {
            Self::Bucket(level) => [level.us, level.parts, 0],
            Self::Window { start, count } => [*start, *count, 0],
            Self::Counter { start, current, previous } => [*start, *current, *previous],
            Self::Log(log) => log.numbers(),
        }
    }

    /// Creates the state from its [`numbers`](Self::numbers). None for a log, because the numbers do not contain its
    /// times.
    pub fn of_numbers(limit: &StoreLimit, [a, b, c]: Mark) -> Option<Self> {
        Some(match limit.strategy {
            Strategy::FixedWindow => Self::Window { start: a, count: b },
            Strategy::SlidingWindowCounter => Self::Counter { start: a, current: b, previous: c },
            Strategy::SlidingWindowLog => return None,
            _ => Self::Bucket(Point { us: a, parts: b }),
        })
    }
}

/// The start of the window that contains `now`. Windows are aligned to the Unix epoch.
pub fn start_of(limit: &StoreLimit, now: u64) -> u64 {
    now - now % limit.period
}

/// The time from the start of a window until the `previous` requests of the previous window count as at most `room`.
fn opens_after(limit: &StoreLimit, room: u64, previous: u64) -> u64 {
    if previous <= room {
        return 0;
    }
    let still = u128::from(room) * u128::from(limit.period) / u128::from(previous);
    limit.period - u64::try_from(still).unwrap_or(u64::MAX).min(limit.period)
}
