//! Compiles the limits of a rule and of its overrides, and checks the numbers of each strategy.

use weir_api as api;
use weir_wire::{self as wire, LONGEST_LOG};

use super::faults::Faults;

/// The maximum number of requests that a SlidingWindowCounter can count.
const MOST_COUNTED: u64 = 1 << 30;

pub(super) fn limits(limits: &[api::Limit], path: &str, faults: &mut Faults) -> Vec<wire::Limit> {
    if limits.is_empty() {
        faults.add(format!("{path}.limits"), "a rule that limits must have at least one limit");
    }
    let numbers = |limit: &api::Limit| Numbers {
        name: limit.name.clone(),
        strategy: limit.strategy,
        requests: limit.requests,
        per: limit.per.clone(),
        burst: limit.burst,
        debt: limit.debt,
    };
    (limits.iter().enumerate())
        .map(|(i, limit)| numbers(limit).compile(&format!("{path}.limits[{i}]"), faults))
        .collect()
}

/// Compiles an override of some of `limits`. Their strategies do not change.
pub(super) fn overridden(
    entry: &api::Override,
    limits: &[api::Limit],
    path: &str,
    faults: &mut Faults,
) -> wire::Override {
    let mut replaced = Vec::new();
    for (i, other) in entry.limits.iter().enumerate() {
        let path = format!("{path}.limits[{i}]");
        let Some(limit) = limits.iter().find(|limit| limit.name == other.name) else {
            faults.add(format!("{path}.name"), format!("the rule has no limit {:?}", other.name));
            continue;
        };
        let numbers = Numbers {
            name: other.name.clone(),
            strategy: limit.strategy,
            requests: other.requests,
            per: other.per.clone(),
            burst: other.burst,
            debt: other.debt,
        };
        replaced.push(numbers.compile(&path, faults));
    }
    wire::Override { keys: entry.keys.clone(), limits: replaced }
}

/// Returns the highest cost that the limit can ever admit.
pub(super) fn most(limit: &wire::Limit) -> u64 {
    let waits = u64::from(limit.strategy == wire::Strategy::LeakyBucket);
    limit.burst.unwrap_or(limit.requests) + limit.debt.unwrap_or(0) + waits
}

/// The numbers of a limit as written in the policy.
struct Numbers {
    name: String,
    strategy: api::Strategy,
    requests: i64,
    per: api::Period,
    burst: Option<i64>,
    debt: Option<i64>,
}

impl Numbers {
    fn compile(self, path: &str, faults: &mut Faults) -> wire::Limit {
        let requests: u64 = faults.number(format!("{path}.requests"), self.requests, 1);
        let burst: Option<u64> = self.burst.map(|burst| faults.number(format!("{path}.burst"), burst, 1));
        let debt: Option<u64> = self.debt.map(|debt| faults.number(format!("{path}.debt"), debt, 1));
        let burst_or = |default: u64| Some(burst.unwrap_or(default));
        let (strategy, decided_burst, most) = match self.strategy {
            api::Strategy::TokenBucket => (wire::Strategy::TokenBucket, burst_or(requests), None),
            api::Strategy::TokenBucketWithDebt => (wire::Strategy::TokenBucketWithDebt, burst_or(requests), None),
            api::Strategy::Gcra => (wire::Strategy::Gcra, burst_or(1), None),
            api::Strategy::LeakyBucket => (wire::Strategy::LeakyBucket, burst_or(requests), None),
            api::Strategy::FixedWindow => (wire::Strategy::FixedWindow, None, None),
            api::Strategy::SlidingWindowCounter => (wire::Strategy::SlidingWindowCounter, None, Some(MOST_COUNTED)),
            api::Strategy::SlidingWindowLog => (wire::Strategy::SlidingWindowLog, None, Some(LONGEST_LOG)),
        };
        if decided_burst.is_none() && burst.is_some() {
            let message = format!("burst is not valid with strategy {strategy:?}: remove it");
            faults.add(format!("{path}.burst"), message);
        }
        let overdrawn = strategy == wire::Strategy::TokenBucketWithDebt;
        if !overdrawn && debt.is_some() {
            faults.add(format!("{path}.debt"), "debt is valid only with strategy TokenBucketWithDebt: remove it");
        }
        if let Some(most) = most.filter(|most| requests > *most) {
            let message = format!("must be at most {most} with strategy {strategy:?}");
            faults.add(format!("{path}.requests"), message);
        }
        wire::Limit {
            name: self.name,
            strategy,
            requests,
            period_millis: self.per.as_millis(),
            burst: decided_burst,
            debt: overdrawn.then(|| debt.unwrap_or(0)),
        }
    }
}
