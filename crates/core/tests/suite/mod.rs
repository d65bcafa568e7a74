//! The list of strategies that every test goes through: [`Strategy::ALL`]. Whoever adds one there has it tested.

use std::time::Duration;

use weir_core::{Quota, Strategy};

pub(crate) const STRATEGIES: [Strategy; 7] = Strategy::ALL;

/// `requests` in each period, and a [`Quota::most`] of as many: half of the bucket with debt is its debt, and all but
/// one wait in line for a leaky bucket.
pub(crate) fn quota(strategy: Strategy, requests: u64, period: Duration) -> Quota {
    let (burst, debt) = match strategy {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => (None, 0),
        Strategy::TokenBucket | Strategy::Gcra => (Some(requests), 0),
        Strategy::TokenBucketWithDebt => (Some(requests - requests / 2), requests / 2),
        // One goes at once. There is no line of none.
        Strategy::LeakyBucket => (Some(requests.max(2) - 1), 0),
    };
    let quota = Quota::new(strategy, requests, period, burst).expect("valid");
    if debt == 0 { quota } else { quota.with_debt(debt).expect("valid") }
}

/// How many requests of cost 1 are admitted at one moment if `most` of them are: a leaky bucket has one go.
pub(crate) fn at_once(strategy: Strategy, most: u64) -> u64 {
    if strategy == Strategy::LeakyBucket { 1 } else { most }
}
