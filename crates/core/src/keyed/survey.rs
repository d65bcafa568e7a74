//! The survey for metrics: how near keys, or a rule without a key, are to their limits. A survey reads a bounded number
//! of keys. It charges nothing and blocks no decision.

use super::{Table, book::MeterSet, cells::is_key};
use crate::{
    Standing, Time,
    meter::Stop,
    supply::at_once,
    sync::{AtomicU64, Ordering},
};

/// The result of a survey: how near the keys of a rule are to their limits.
///
/// ```
/// use std::num::NonZeroUsize;
/// use std::time::Duration;
/// use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
///
/// let now = Time::from_nanos(0);
/// let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
/// let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
/// rule.charge(|| now, b"ann", 4)?;
/// rule.charge(|| now, b"bob", 1)?;
/// let survey = rule.survey(now, 4096).expect("it is keyed");
/// assert_eq!((survey.keys, survey.exhausted), (2, 0));
/// assert_eq!((survey.remaining, survey.of), (6, 10)); // ann's
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySurvey {
    /// The number of surveyed keys.
    pub keys: u64,
    /// The number of surveyed keys that have a limit without remaining requests.
    pub exhausted: u64,
    /// The remaining requests of the limit with the smallest part of its requests left. Equal to [`of`](Self::of) if no
    /// key was surveyed.
    pub remaining: u64,
    /// The size of this limit: burst plus debt of a bucket, requests of a window, or 1 for a leaky bucket, which admits
    /// one request at a time. At least 1.
    pub of: u64,
}

impl KeySurvey {
    const NONE: Self = Self { keys: 0, exhausted: 0, remaining: 1, of: 1 };

    fn add(&mut self, (remaining, of): (u64, u64)) {
        self.keys += 1;
        self.exhausted += u64::from(remaining == 0);
        if is_less((remaining, of), (self.remaining, self.of)) {
            (self.remaining, self.of) = (remaining, of);
        }
    }
}

/// Returns true if the first fraction is less than the second.
fn is_less((part, whole): (u64, u64), (other_part, other_whole): (u64, u64)) -> bool {
    u128::from(part) * u128::from(other_whole) < u128::from(other_part) * u128::from(whole)
}

impl Table {
    /// Surveys this many cells and overrides, starting at a place that moves with time. Keys are in hash order, so
    /// consecutive keys are a random sample.
    pub(crate) fn survey(&self, now: Time, most: usize) -> KeySurvey {
        if let Some(next) = self.chain.successor() {
            return next.survey(now, most);
        }
        let mut survey = KeySurvey::NONE;
        let overrides = self.overrides.values().take(most);
        let own = overrides.filter_map(|own| self.book.set(own.override_index).least(&own.words, now));
        own.for_each(|least| survey.add(least));
        let cells = self.cells.run(now.as_nanos(), most.saturating_sub(self.overrides.len()));
        for cell in cells.filter(|cell| is_key(cell.mark.load(Ordering::Acquire))) {
            if let Some(least) = self.book.plain.least(cell.words, now) {
                survey.add(least);
            }
        }
        survey
    }
}

impl MeterSet {
    /// Returns the remaining requests and the size of the limit with the smallest part of its requests left. None while
    /// the words move to other terms.
    fn least(&self, words: &[AtomicU64], now: Time) -> Option<(u64, u64)> {
        let mut least = (1, 1);
        for (meter, own) in self.limits(words) {
            let standing = match meter.peek(own, now, 1) {
                Ok(standing) | Err(Stop::Refused(standing)) => standing,
                Err(Stop::Sealed) => return None,
            };
            let share = share_of(&standing);
            if is_less(share, least) {
                least = share;
            }
        }
        Some(least)
    }
}

/// Returns the remaining requests and the size of the limit with the smallest part of its requests left.
pub(crate) fn least_of(standings: impl Iterator<Item = Standing>) -> (u64, u64) {
    let shares = standings.map(|standing| share_of(&standing));
    shares.reduce(|least, share| if is_less(share, least) { share } else { least }).unwrap_or((1, 1))
}

fn share_of(standing: &Standing) -> (u64, u64) {
    (standing.remaining(), at_once(&standing.quota()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{num::NonZeroUsize, time::Duration};

    use crate::{Quota, RuleLimiter, Strategy, Terms, Time};

    fn quota(strategy: Strategy, requests: u64) -> Quota {
        Quota::new(strategy, requests, Duration::from_secs(60), None).expect("valid")
    }

    fn keyed(terms: Terms, keys: usize) -> RuleLimiter {
        RuleLimiter::keyed(Time::from_nanos(0), terms, NonZeroUsize::new(keys).expect("not zero"))
    }

    const NOW: Time = Time::from_nanos(0);

    #[test]
    fn the_key_that_is_nearest_to_its_limit_is_found_for_every_strategy() {
        for strategy in Strategy::ALL {
            let rule = keyed(Terms::new([("a", quota(strategy, 8)), ("b", quota(strategy, 100))]).expect("valid"), 100);
            let none = rule.survey(NOW, 1000).expect("keyed");
            assert_eq!((none.keys, none.exhausted, none.remaining), (0, 0, none.of), "{strategy:?}");
            for key in 0..50_u8 {
                rule.charge(|| NOW, &[key], 1).expect("there is room");
            }
            let before = rule.survey(NOW, 1000).expect("keyed");
            assert_eq!(before.keys, 50, "{strategy:?}");
            while rule.charge(|| NOW, &[7], 1).is_ok() {}
            let after = rule.survey(NOW, 1000).expect("keyed");
            assert_eq!((after.keys, after.remaining), (50, 0), "{strategy:?}");
            assert!(after.exhausted >= 1, "{strategy:?}");
        }
    }

    #[test]
    fn overrides_have_their_own_numbers_and_shared_rules_have_no_keys() {
        let gold = [("a", quota(Strategy::FixedWindow, 1000))];
        let terms = Terms::new([("a", quota(Strategy::FixedWindow, 10))]).expect("valid");
        let rule = keyed(terms.with_override([b"gold".to_vec()], gold).expect("valid"), 100);
        rule.charge(|| NOW, b"gold", 900).expect("there is room");
        rule.charge(|| NOW, b"ann", 5).expect("there is room");
        let survey = rule.survey(NOW, 1000).expect("keyed");
        assert_eq!((survey.keys, survey.exhausted, survey.remaining, survey.of), (2, 0, 100, 1000));
        let terms = Terms::new([("a", quota(Strategy::FixedWindow, 10))]).expect("valid");
        assert_eq!(RuleLimiter::unkeyed(NOW, terms).survey(NOW, 1000), None);
    }

    /// A leaky bucket with room for a hundred waiting requests admits one request at a time.
    #[test]
    fn the_headroom_of_an_idle_key_is_its_whole_limit_for_every_strategy() {
        let minute = Time::from_nanos(60_000_000_000);
        for strategy in Strategy::ALL {
            let rule = keyed(Terms::new([("a", quota(strategy, 100))]).expect("valid"), 10);
            rule.charge(|| NOW, b"ann", 1).expect("there is room");
            let survey = rule.survey(minute, 1000).expect("keyed");
            // A counter still counts the previous window.
            let used = u64::from(strategy == Strategy::SlidingWindowCounter);
            assert_eq!((survey.keys, survey.of - survey.remaining), (1, used), "{strategy:?}");
        }
    }

    #[test]
    fn the_headroom_without_a_key_is_that_of_the_limit_with_the_smallest_share() {
        for strategy in Strategy::ALL {
            let hour = Quota::new(Strategy::FixedWindow, 5000, Duration::from_secs(3600), None).expect("valid");
            let terms = Terms::new([("a", quota(strategy, 8)), ("hour", hour)]).expect("valid");
            let rule = RuleLimiter::unkeyed(NOW, terms);
            let (left, of) = rule.headroom(NOW).expect("it has no key");
            assert_eq!(left, of, "{strategy:?}");
            while rule.charge(|| NOW, &[], 1).is_ok() {}
            assert_eq!(rule.headroom(NOW).expect("it has no key").0, 0, "{strategy:?}");
        }
        let second = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(1), None).expect("valid");
        let terms = Terms::new([("second", second), ("minute", quota(Strategy::FixedWindow, 500))]).expect("valid");
        let rule = RuleLimiter::unkeyed(NOW, terms);
        let later = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        for at in 0..4 {
            rule.charge(|| later(at), &[], 100).expect("there is room");
        }
        // 100 of 100 and 100 of 500: the smallest share, not the smallest number.
        assert_eq!(rule.headroom(later(10)), Some((100, 500)));
        assert_eq!(rule.headroom(later(60)), Some((100, 100)), "a new window");
        assert_eq!(keyed(Terms::new([("a", second)]).expect("valid"), 10).headroom(NOW), None);
    }

    #[test]
    fn a_survey_reads_a_bounded_number_of_keys() {
        let terms = Terms::new([("a", quota(Strategy::TokenBucket, 10))]).expect("valid");
        let rule = keyed(terms, 10_000);
        for key in 0..5000_u32 {
            rule.charge(|| NOW, &key.to_le_bytes(), 1).expect("there is room");
        }
        let at = |nanos| rule.survey(Time::from_nanos(nanos), 1000).expect("keyed").keys;
        let seen: Vec<_> = (0..50).map(|turn| at(turn * 15_000_000_011)).collect();
        assert!(seen.iter().all(|keys| (1..=1000).contains(keys)), "{seen:?}");
        assert_eq!(rule.survey(NOW, usize::MAX).expect("keyed").keys, 5000);
    }

    #[test]
    fn a_survey_goes_on_where_the_terms_changed() {
        let terms = |requests| Terms::new([("a", quota(Strategy::FixedWindow, requests))]).expect("valid");
        let before = keyed(terms(10), 100);
        before.charge(|| NOW, b"ann", 5).expect("there is room");
        let after = before.retune(|| NOW, terms(20), NonZeroUsize::new(100));
        for rule in [&before, &after] {
            let survey = rule.survey(NOW, 1000).expect("keyed");
            assert_eq!((survey.keys, survey.remaining, survey.of), (1, 15, 20));
        }
    }
}
