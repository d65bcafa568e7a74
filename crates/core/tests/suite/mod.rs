//! The strategies that every test uses: [`Strategy::ALL`]. So tests include each new strategy.

use std::time::Duration;

use weir_core::{Quota, Strategy};

pub(crate) const STRATEGIES: [Strategy; 7] = Strategy::ALL;

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
