//! The list of strategies that every test runs with: [`Strategy::ALL`]. A strategy that is added there is tested.

use std::time::Duration;

use weir_core::{Quota, Strategy};

pub(crate) const STRATEGIES: [Strategy; 7] = Strategy::ALL;

/// `requests` in each period, and the same [`Quota::most`]: half of a bucket with debt is its debt, and all but one
/// request wait in a leaky bucket.
pub(crate) fn quota(strategy: Strategy, requests: u64, period: Duration) -> Quota {
    let (burst, debt) = match strategy {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => (None, 0),
        Strategy::TokenBucket | Strategy::Gcra => (Some(requests), 0),
        Strategy::TokenBucketWithDebt => (Some(requests - requests / 2), requests / 2),
        // One is admitted at once. A leaky bucket cannot have a burst of zero.
        Strategy::LeakyBucket => (Some(requests.max(2) - 1), 0),
    };
    let quota = Quota::new(strategy, requests, period, burst).expect("valid");
    if debt == 0 { quota } else { quota.with_debt(debt).expect("valid") }
}

/// How many requests of cost 1 are admitted at one time if `most` is the largest cost: a leaky bucket admits one.
pub(crate) fn at_once(strategy: Strategy, most: u64) -> u64 {
    if strategy == Strategy::LeakyBucket { 1 } else { most }
}
