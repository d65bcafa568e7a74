//! The strategies that every test uses: [`Strategy::ALL`]. So tests include each new strategy. Also the helpers that
//! several tests share.
#![expect(dead_code, reason = "each test uses only a part of this module")]

use std::{num::NonZeroUsize, time::Duration};

use weir_core::{Limiter, Quota, RuleLimiter, Strategy, Terms, Time};

pub(crate) const STRATEGIES: [Strategy; 7] = Strategy::ALL;

pub(crate) const START: Time = Time::from_nanos(1_700_000_000_000_000_000);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn after(duration: Duration) -> Time {
    START.saturating_add(duration)
}

/// Returns a quota of `requests` in each period, with the same number as its [`Quota::most`]. Half of a bucket with
/// debt is its debt. In a leaky bucket, all requests except one wait.
pub(crate) fn quota(strategy: Strategy, requests: u64, period: Duration) -> Quota {
    let (burst, debt) = match strategy {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => (None, 0),
        Strategy::TokenBucket | Strategy::Gcra => (Some(requests), 0),
        Strategy::TokenBucketWithDebt => (Some(requests - requests / 2), requests / 2),
        // One request is admitted immediately. A leaky bucket cannot have a burst of zero.
        Strategy::LeakyBucket => (Some(requests.max(2) - 1), 0),
    };
    let quota = Quota::new(strategy, requests, period, burst).expect("valid");
    if debt == 0 { quota } else { quota.with_debt(debt).expect("valid") }
}

/// Returns the number of requests of cost 1 that are admitted at one time if `most` is the largest cost. A leaky bucket
/// admits one.
pub(crate) fn at_once(strategy: Strategy, most: u64) -> u64 {
    if strategy == Strategy::LeakyBucket { 1 } else { most }
}

pub(crate) fn is_window(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog)
}

/// Returns terms with this limit only.
pub(crate) fn terms(quota: Quota) -> Terms {
    Terms::new([("limit", quota)]).expect("valid")
}

pub(crate) fn keys(max: usize) -> NonZeroUsize {
    NonZeroUsize::new(max).expect("not zero")
}

/// Charges one request at a time until a refusal. Returns the number of admissions.
pub(crate) fn drain(limiter: &Limiter, now: Time) -> u64 {
    (0..2_000_000).take_while(|_| limiter.charge(now, 1).is_ok()).count() as u64
}

/// The same for one key of a rule.
pub(crate) fn drain_key(rule: &RuleLimiter, now: Time, key: &[u8]) -> u64 {
    (0..2_000_000).take_while(|_| rule.charge(|| now, key, 1).is_ok()).count() as u64
}

/// Explores the interleavings with at most this many preemptions.
#[cfg(loom)]
pub(crate) fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// Runs a test for each strategy.
#[cfg(loom)]
pub(crate) fn model_each(preemptions: usize, test: impl Fn(Strategy) + Sync + Send + Copy + 'static) {
    for strategy in STRATEGIES {
        model(preemptions, move || test(strategy));
    }
}
