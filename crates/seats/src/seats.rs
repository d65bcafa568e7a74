//! Seats that a pod holds. A seat is charged in the store once, and used once. It can be used from the moment the
//! ceiling reaches it until the floor passes it.

use weir_core::Strategy;

use crate::{
    bounds::StoreTime,
    bucket::{Point, capacity, slowed},
    state::{Mark, State},
    terms::{StoreLimit, StoreTerms},
};

/// Consecutive seats of all limits of a key.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Quota, Strategy};
/// use weir_seats::{Key, MemoryStore, StoreTime, Take, StoreTerms};
///
/// let quota = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(1), None)?;
/// let terms = StoreTerms::new(1, &[(0, quota)])?;
/// let (store, key, now) = (MemoryStore::new(), Key::new("store shop/api.search", 7)?, 1_790_000_000_000_000);
///
/// let guard = Duration::from_millis(100);
/// let reply = store.take(&key, &Take { prefetch: 20, guard, ..Take::new(&terms) }, || now)?;
/// let mut seats = reply.prefetched.expect("there is plenty");
/// let later = StoreTime { earliest: now + 1_000, latest: now + 2_000 };
/// let used = (0..50).filter(|_| seats.claim(&terms, 1, later)).count();
/// assert_eq!(used, 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "seats are charged: use them or give them back"]
pub struct Seats {
    /// The stamp of the terms under which the seats were charged.
    pub stamp: u64,
    /// The birth of the history in which the store charged the seats.
    pub birth: u64,
    /// The mark of each limit at which the seats begin.
    pub start: Vec<Mark>,
    /// The [`part`](crate::part) of each bucket's supply that was reserved for other programs. It makes the times
    /// between the seats of a bucket longer.
    pub reserved: u32,
    left: u32,
}

impl Seats {
    /// Creates seats that begin at these marks.
    pub fn new((stamp, birth): (u64, u64), start: Vec<Mark>, reserved: u32, left: u32) -> Self {
        Self { stamp, birth, start, reserved, left }
    }

    /// The number of unused seats.
    pub const fn left(&self) -> u32 {
        self.left
    }

    /// Uses seats for a request with this cost, if they are certainly usable at this time. Expired seats are dropped.
    /// Seats of other terms cannot be used: they stay charged in the store.
    pub fn claim(&mut self, terms: &StoreTerms, cost: u32, at: StoreTime) -> bool {
        self.take(terms, cost, at).is_some()
    }

    /// Uses seats like [`claim`](Self::claim), and returns them, so that the caller can give them back.
    pub fn take(&mut self, terms: &StoreTerms, cost: u32, at: StoreTime) -> Option<Self> {
        if !self.is_of(terms) {
            return None;
        }
        let reserved = self.reserved;
        let limits = terms.raw().iter().zip(&self.start);
        let passed = limits.map(|(limit, &mark)| passed(&slowed(limit, reserved), mark, at)).max().unwrap_or(u64::MAX);
        self.skip(terms, passed);
        let mut limits = terms.raw().iter().zip(&self.start);
        if cost > self.left || !limits.all(|(limit, &mark)| is_due(limit, reserved, mark, cost.into(), at)) {
            return None;
        }
        Some(self.split(terms, cost))
    }

    /// Returns true if the store charged these seats under these terms.
    pub fn is_of(&self, terms: &StoreTerms) -> bool {
        terms.stamp() == self.stamp && terms.raw().len() == self.start.len()
    }

    /// Returns true if the window of a seat may have ended. A seat of a bucket or of a log that is used late counts
    /// when it was granted.
    pub fn have_ended(&self, terms: &StoreTerms, at: StoreTime) -> bool {
        let has_ended =
            |(limit, mark): (&StoreLimit, &Mark)| limit.has_windows() && mark[0] + limit.period <= at.latest;
        self.is_of(terms) && terms.raw().iter().zip(&self.start).any(has_ended)
    }

    /// Removes the first seats, at most `units`, and returns them.
    pub fn split(&mut self, terms: &StoreTerms, units: u32) -> Self {
        let first = Self { left: units.min(self.left), ..self.clone() };
        self.skip(terms, units.into());
        first
    }

    /// Adds seats that directly follow these ones. Returns `next` unchanged if they do not follow.
    pub fn join(&mut self, terms: &StoreTerms, next: Self) -> Option<Self> {
        let follow = self.is_of(terms)
            && (self.stamp, self.birth, self.reserved) == (next.stamp, next.birth, next.reserved)
            && self.end(terms) == next.start
            && self.left.checked_add(next.left).is_some();
        if !follow {
            return Some(next);
        }
        self.left += next.left;
        None
    }

    /// The time at which a request that was granted with patience can proceed, in microseconds of the store's clock.
    /// The request has this cost, and uses the seats after the first `before`. Zero if it can proceed immediately.
    pub fn due(&self, terms: &StoreTerms, before: u32, cost: u32) -> u64 {
        let limits = terms.raw().iter().zip(&self.start).filter(|(limit, _)| limit.is_bucket());
        let due = limits.map(|(limit, &[us, parts, _])| {
            let slowed = slowed(limit, self.reserved);
            let start = Point { us, parts }.after(&slowed, before.into());
            if limit.is_leaky() {
                start.rounded_up()
            } else {
                start.after(&slowed, cost.into()).minus(limit, capacity(limit)).rounded_up()
            }
        });
        due.max().unwrap_or(0)
    }

    /// The mark of each limit at which the seats end.
    pub fn end(&self, terms: &StoreTerms) -> Vec<Mark> {
        let limits = terms.raw().iter().zip(&self.start);
        limits.map(|(limit, &mark)| moved(&slowed(limit, self.reserved), mark, self.left.into())).collect()
    }

    /// Drops the first seats.
    fn skip(&mut self, terms: &StoreTerms, units: u64) {
        let units = u32::try_from(units).unwrap_or(u32::MAX).min(self.left);
        for (limit, mark) in terms.raw().iter().zip(&mut self.start) {
            *mark = moved(&slowed(limit, self.reserved), *mark, units.into());
        }
        self.left -= units;
    }
}

/// The mark after this many seats.
fn moved(limit: &StoreLimit, mark: Mark, units: u64) -> Mark {
    match State::of_numbers(limit, mark) {
        Some(State::Bucket(point)) => {
            let Point { us, parts } = point.after(limit, units);
            [us, parts, 0]
        }
        Some(_) => [mark[0], mark[1] + units, mark[2]],
        None => mark,
    }
}

/// The number of seats that the floor may have passed.
fn passed(limit: &StoreLimit, [a, b, _]: Mark, at: StoreTime) -> u64 {
    match limit.strategy {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter => {
            if a.saturating_add(limit.period) <= at.earliest {
                u64::MAX
            } else {
                0
            }
        }
        Strategy::SlidingWindowLog => u64::MAX,
        _ => {
            let (start, floor) = (Point { us: a, parts: b }, Point::at(at.latest));
            let units = start.units_to(limit, floor);
            units + u64::from(start.after(limit, units) < floor)
        }
    }
}

/// Returns true if the first seats can be used for a request with this cost.
fn is_due(limit: &StoreLimit, reserved: u32, [a, b, _]: Mark, cost: u64, at: StoreTime) -> bool {
    match limit.strategy {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter => {
            a <= at.earliest && at.latest < a.saturating_add(limit.period)
        }
        Strategy::SlidingWindowLog => false,
        _ => {
            let ceiling = Point::at(at.earliest).plus(limit, capacity(limit));
            Point { us: a, parts: b }.after(&slowed(limit, reserved), cost) <= ceiling
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::{Quota, Strategy};

    use super::*;
    use crate::{key::Key, memory::MemoryStore, take::Take};

    const NOW: u64 = 1_790_000_000_000_000;

    fn exactly(time: u64) -> StoreTime {
        StoreTime { earliest: time, latest: time }
    }

    fn ten_per_second() -> StoreTerms {
        let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), Some(100)).expect("a quota");
        StoreTerms::new(1, &[(0, quota)]).expect("terms")
    }

    /// Seats that can only be used later, because the burst before them is used up.
    fn seats(terms: &StoreTerms) -> Seats {
        let (store, key) = (MemoryStore::new(), Key::new("limits", 1).expect("a key"));
        let lookahead = Duration::from_secs(4);
        let question = Take { requests: 100, prefetch: 50, lookahead, ..Take::new(terms) };
        store.take(&key, &question, || NOW).expect("an answer").prefetched.expect("a quarter of forty seats")
    }

    #[test]
    fn a_seat_is_used_once_it_is_due() {
        let terms = ten_per_second();
        let mut seats = seats(&terms);
        assert_eq!(seats.left(), 10);
        for index in 1..=10 {
            let due = NOW + index * 100_000;
            assert!(!seats.claim(&terms, 1, exactly(due - 1)), "{index}");
            // The lower bound of the time decides.
            assert!(!seats.claim(&terms, 1, StoreTime { earliest: due - 1, latest: due + 1 }), "{index}");
            assert!(seats.claim(&terms, 1, exactly(due)), "{index}");
        }
        assert!(!seats.claim(&terms, 1, exactly(NOW + 2_000_000)));
    }

    #[test]
    fn a_seat_below_the_floor_is_lost() {
        let terms = ten_per_second();
        let mut seats = seats(&terms);
        // The first seat begins ten seconds after now. The upper bound of the time decides.
        let floor = NOW + 10_000_000 + 250_000;
        assert!(seats.claim(&terms, 1, StoreTime { earliest: floor - 1_000_000, latest: floor }));
        assert_eq!(seats.left(), 6, "three seats expired, one was used");
        assert!(!seats.claim(&terms, 1, exactly(NOW + 12_000_000)));
        assert_eq!(seats.left(), 0);
    }

    #[test]
    fn a_cost_takes_seats_together_and_other_terms_take_none() {
        let terms = ten_per_second();
        let mut seats = seats(&terms);
        let late = exactly(NOW + 5_000_000);
        assert!(!seats.claim(&terms, 11, late));
        assert!(seats.claim(&terms, 7, late) && !seats.claim(&terms, 4, late));
        let changed = StoreTerms::new(2, &terms.limits().collect::<Vec<_>>()).expect("terms");
        assert!(!seats.claim(&changed, 1, late));
        assert!(seats.claim(&terms, 3, late));
    }

    #[test]
    fn seats_of_a_window_end_with_it() {
        let quota = Quota::new(Strategy::FixedWindow, 100, Duration::from_secs(1), None).expect("a quota");
        let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
        let (store, key) = (MemoryStore::new(), Key::new("limits", 1).expect("a key"));
        let take = || store.take(&key, &Take { prefetch: 9, ..Take::new(&terms) }, || NOW + 5).expect("an answer");
        let mut seats = take().prefetched.expect("a quarter of the window");
        let end = NOW + 1_000_000;
        assert!(seats.claim(&terms, 1, exactly(NOW + 6)) && seats.claim(&terms, 1, exactly(end - 1)));
        assert!(!seats.claim(&terms, 1, StoreTime { earliest: end - 1, latest: end }));
        assert_eq!(seats.left(), 7, "the window has possibly not ended");
        assert!(!seats.claim(&terms, 1, exactly(end)));
        assert_eq!(seats.left(), 0);
    }
}
