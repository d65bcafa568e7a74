//! The value of one key in a store: the newest terms, the time at which the store created the key (`birth`), and the
//! state of each limit.
//!
//! ```text
//! 7 1790000000000000|0 3 1 10000 100 0,1 0 5000 60000000 5000 0|1790000000012345 0 0 1789999980000000 17 0
//! ^ stamp, birth      ^ limits: number, strategy, requests,     ^ three numbers for each limit
//!                       period, burst, debt
//! ```
//!
//! If the key is banned, the beginning and the length of the ban follow: `|1790000000012345 900000000`.
//!
//! This is the format in Memcached. Redis stores the same numbers in binary (`take.lua` of weir-store).

use std::fmt::Write as _;

use crate::{
    ban::Banned,
    bucket::{Point, capacity},
    state::{Mark, State},
    terms::{StoreLimit, StoreTerms, numbers, text_of},
};

/// The value of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The stamp of the terms.
    pub stamp: u64,
    /// The time at which the store began to count this key. A key and its birth identify a history: unused seats are taken
    /// back only into the history that charged them.
    pub birth: u64,
    /// The limits of the terms.
    pub limits: Box<[StoreLimit]>,
    /// The state of each limit.
    pub states: Box<[State]>,
    /// Windows and logs of earlier terms. They are charged and decide nothing, so that a change back frees nothing. A
    /// line of Memcached does not contain them.
    pub former: Box<[(StoreLimit, State)]>,
    /// The ban of the key. It can have ended.
    pub banned: Option<Banned>,
}

impl Value {
    /// Creates the value of a key that has counted nothing.
    pub fn new(stamp: u64, limits: &[StoreLimit], now: u64) -> Self {
        let states = limits.iter().map(|limit| State::new(limit, now)).collect();
        Self { stamp, birth: now, limits: limits.into(), states, former: Box::default(), banned: None }
    }

    /// Raises the value as if all limits had been used up at this time.
    pub fn use_up(&mut self, at: u64) {
        for (limit, state) in self.all_mut() {
            let mut used = State::new(limit, at);
            used.charge(limit, at, limit.at_once());
            state.raise(limit, used.mark(limit, at));
        }
    }

    /// Charges units that shares used at any time before `now`. A bucket that is empty is not charged more, because it
    /// refills from `now` as if the units had been used just before.
    pub fn owe(&mut self, now: u64, units: u64) {
        for (limit, state) in self.all_mut() {
            state.advance(limit, now);
            match state {
                State::Bucket(level) => {
                    let empty = Point::at(now).plus(limit, capacity(limit));
                    *level = level.after(limit, units).min(empty).max(*level);
                }
                _ => state.charge(limit, now, units),
            }
        }
    }

    /// Raises a value that is known only from levels, as they were at any times.
    pub fn raise_latest(&mut self, seen: &[Mark]) {
        for ((limit, state), seen) in self.limits.iter().zip(&mut self.states).zip(seen) {
            state.raise_latest(limit, *seen);
        }
    }

    /// The level of each limit at this time.
    pub fn marks(&self, now: u64) -> Vec<Mark> {
        self.limits.iter().zip(&self.states).map(|(limit, state)| state.mark(limit, now)).collect()
    }

    /// Makes the value what it is if all units were charged later. `now` is after this delay.
    pub fn delay(&mut self, by: u64, now: u64) {
        self.all_mut().for_each(|(limit, state)| state.delay(limit, by, now));
    }

    /// The time from which all limits are at full credit again and the key is not banned.
    pub fn full_at(&self) -> u64 {
        let full = self.all().map(|(limit, state)| state.full_at(limit));
        full.chain(self.banned.map(|banned| banned.end())).max().unwrap_or(0)
    }

    /// The number of times for which the logs have memory.
    pub fn memory(&self) -> usize {
        self.all().map(|(_, state)| state.memory()).sum()
    }

    /// Returns true if a question can make the value need more memory, because one of its logs is not full.
    pub fn can_grow(&self) -> bool {
        self.all().any(|(_, state)| state.can_grow())
    }

    /// All limits with their states: those in force, and then the former ones.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&StoreLimit, &State)> {
        self.limits.iter().zip(&self.states).chain(self.former.iter().map(|(limit, state)| (limit, state)))
    }

    /// As [`all`](Self::all), to change the states.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = (&StoreLimit, &mut State)> {
        let former = self.former.iter_mut().map(|(limit, state)| (&*limit, state));
        self.limits.iter().zip(&mut self.states).chain(former)
    }

    /// Formats the value as a line.
    pub fn text(&self) -> String {
        let mut text = format!("{} {}|{}|", self.stamp, self.birth, text_of(&self.limits));
        for (index, state) in self.states.iter().enumerate() {
            let [a, b, c] = state.numbers();
            let space = if index == 0 { "" } else { " " };
            let _ = write!(text, "{space}{a} {b} {c}");
        }
        if let Some(Banned { since, length }) = self.banned {
            let _ = write!(text, "|{since} {length}");
        }
        text.push('\n');
        text
    }

    /// Parses the output of [`text`](Self::text). None if the text is invalid, or if a limit is a log.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_suffix('\n')?.split('|');
        let (head, limits, states) = (parts.next()?, parts.next()?, parts.next()?);
        let &[stamp, birth] = &numbers(head)?[..] else { return None };
        let terms = StoreTerms::parse(stamp, limits)?;
        let banned = match parts.next().map(numbers) {
            None => None,
            Some(numbers) => {
                let &[since, length] = &numbers?[..] else { return None };
                Some(Banned { since, length })
            }
        };
        let marks = numbers(states)?;
        let (marks, rest) = marks.as_chunks::<3>();
        if parts.next().is_some() || !rest.is_empty() || marks.len() != terms.raw().len() {
            return None;
        }
        let times = banned.map_or([0; 2], |banned| [banned.since, banned.length]);
        let bounded =
            marks.iter().flatten().chain([&birth]).chain(&times).all(|&number| number < 2 * crate::terms::EXACT);
        let states = terms.raw().iter().zip(marks).map(|(limit, mark)| State::of_numbers(limit, *mark));
        let states = states.collect::<Option<Box<[_]>>>()?;
        let limits = terms.raw().into();
        bounded.then(|| Self { stamp, birth, limits, states, former: Box::default(), banned })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::{Quota, Strategy};

    use super::*;

    const NOW: u64 = 1_790_000_000_000_000;

    fn value(strategy: Strategy) -> Value {
        let quota = Quota::new(strategy, 10, Duration::from_secs(1), None).expect("a quota");
        Value::new(1, StoreTerms::new(1, &[(0, quota)]).expect("terms").raw(), NOW)
    }

    /// Stores contain such values of earlier versions.
    #[test]
    fn a_recorded_value_is_read_and_written_as_it_is() {
        let limits = "0 3 1 10000 100 0,1 0 5000 60000000 5000 0,2 1 10 1000000 10 0,3 4 3 1000 9 4,4 6 1 200000 1 0";
        let states =
            "1790000000012345 0 0 1789999980000000 17 0 1790000000000000 3 8 1790000000000001 1 0 1790000000000002 0 0";
        for banned in ["", "|1790000000012345 900000000"] {
            let text = format!("7 1790000000000000|{limits}|{states}{banned}\n");
            let value = Value::parse(&text).expect("a value");
            assert_eq!((value.stamp, value.birth, value.limits.len()), (7, NOW, 5));
            let [bucket, window] = [value.limits[0], value.limits[1]];
            let (bucket_of, window_of) = ((10_000, 100), (60_000_000, 5_000));
            assert_eq!(((bucket.period, bucket.burst), (window.period, window.requests)), (bucket_of, window_of));
            let strategies = value.limits.iter().map(|limit| limit.strategy).collect::<Vec<_>>();
            let expected = [
                Strategy::TokenBucket,
                Strategy::FixedWindow,
                Strategy::SlidingWindowCounter,
                Strategy::TokenBucketWithDebt,
                Strategy::Gcra,
            ];
            assert_eq!(strategies, expected);
            let numbers = [value.states[0].numbers(), value.states[1].numbers()];
            assert_eq!(numbers, [[1_790_000_000_012_345, 0, 0], [1_789_999_980_000_000, 17, 0]]);
            let times = value.banned.map(|it| (it.since, it.length));
            assert_eq!(times, (!banned.is_empty()).then_some((1_790_000_000_012_345, 900_000_000)));
            assert_eq!(value.text(), text);
        }
        let log = "1 1790000000000000|0 2 5 1000 5 0|0 0 0\n";
        assert_eq!(Value::parse(log), None, "a line has no room for the times of a log");
        let leaky = "1 1790000000000000|0 5 1 1000 5 0|1790000000000000 0 0\n";
        assert_eq!(Value::parse(leaky).map(|value| value.limits[0].strategy), Some(Strategy::LeakyBucket));
    }

    #[test]
    fn what_shares_used_empties_a_bucket_at_most() {
        let mut bucket = value(Strategy::TokenBucket);
        bucket.owe(NOW, 4);
        assert_eq!(bucket.full_at(), NOW + 400_000);
        bucket.owe(NOW, 1_000);
        assert_eq!(bucket.full_at(), NOW + 1_000_000);
        let mut window = value(Strategy::FixedWindow);
        window.owe(NOW, 25);
        assert_eq!(window.states[0].numbers(), [NOW, 25, 0]);
    }

    #[test]
    fn a_used_up_value_has_no_credit_at_that_time() {
        for strategy in Strategy::ALL {
            let mut value = value(strategy);
            value.use_up(NOW + 1);
            let limit = value.limits[0];
            value.states[0].advance(&limit, NOW + 1);
            assert_eq!(value.states[0].fits(&limit, NOW + 1, (1, 1), 0), 0, "{strategy:?}");
        }
    }

    /// A log has memory for the units that it has counted. A full log takes no more.
    #[test]
    fn only_a_log_that_is_not_full_can_grow() {
        let quota = Quota::new(Strategy::SlidingWindowLog, 64, Duration::from_secs(1), None).expect("a quota");
        let mut log = Value::new(1, StoreTerms::new(1, &[(0, quota)]).expect("terms").raw(), NOW);
        assert_eq!((log.memory(), log.can_grow()), (0, true));
        log.owe(NOW, 3);
        assert!((3..64).contains(&log.memory()) && log.can_grow(), "{}", log.memory());
        log.use_up(NOW);
        let memory = log.memory();
        assert!((64..128).contains(&memory) && !log.can_grow(), "{memory}");
        log.owe(NOW + 1, 1_000);
        assert_eq!(log.memory(), memory);
        let window = value(Strategy::FixedWindow);
        assert_eq!((window.memory(), window.can_grow()), (0, false));
    }

    /// The clock of the counter that made the mark was ahead by an hour, or behind.
    #[test]
    fn a_mark_of_another_clock_allows_no_more_than_before() {
        const HOUR: u64 = 3_600_000_000;
        let limit = |strategy| value(strategy).limits[0];
        let bucket = |us, now, margin| State::rebased(&limit(Strategy::TokenBucket), [us, 3, 0], now, margin);
        assert_eq!(bucket(NOW + HOUR, NOW, 0), [NOW + 1_000_000, 0, 0], "empty, and no more");
        assert_eq!(bucket(NOW + 5, NOW, 100), [NOW + 105, 3, 0]);
        let window = |start, now, margin| State::rebased(&limit(Strategy::FixedWindow), [start, 7, 0], now, margin);
        assert_eq!(window(NOW + HOUR, NOW + 5, 0), [NOW, 7, 0]);
        assert_eq!(window(NOW, NOW + 1_000_005, 100), [NOW + 1_000_000, 7, 0], "it has possibly not ended");
        assert_eq!(window(NOW, NOW + 1_000_105, 100), [NOW, 7, 0]);
        let log = |at, now, margin| State::rebased(&limit(Strategy::SlidingWindowLog), [at, 7, 0], now, margin);
        assert_eq!((log(NOW + HOUR, NOW, 0), log(NOW - 50, NOW, 100)), ([NOW, 7, 0], [NOW, 7, 0]));
    }
}
