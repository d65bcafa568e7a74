//! Compiles the limits of a rule and of its overrides, and checks the numbers of each strategy.

use weir_api as api;
use weir_wire::{self as wire, LONGEST_LOG};

use super::faults::Faults;

const NO_RATE: &str = "requests and per are required: add both, or make the only limit of the rule concurrent";

/// The maximum number of requests that a SlidingWindowCounter can count.
const MOST_COUNTED: u64 = 1 << 30;

/// Compiles the concurrent limit of a rule. A rule with a concurrent limit has no other limit.
pub(super) fn concurrency(rule: &api::Rule, path: &str, faults: &mut Faults) -> Option<wire::Concurrency> {
    let concurrent = |limit: &api::Limit| limit.concurrent.is_some();
    let index = rule.limits.iter().position(concurrent)?;
    let limit = &rule.limits[index];
    let api::Limit { name, requests, per, concurrent: own, burst, debt, strategy } = limit;
    let path_of_limit = format!("{path}.limits[{index}]");
    if rule.limits.len() > 1 {
        faults.add(&path_of_limit, "a concurrent limit is the only limit of its rule: give each a rule of its own");
    }
    for (field, given) in [
        ("requests", requests.is_some()),
        ("per", per.is_some()),
        ("burst", burst.is_some()),
        ("debt", debt.is_some()),
        ("strategy", *strategy != api::Strategy::default()),
    ] {
        if given {
            faults.add(format!("{path_of_limit}.{field}"), "is not valid with concurrent: remove it");
        }
    }
    let is_later = |cost: &api::Cost| !matches!(cost, api::Cost::Requests(_) | api::Cost::Header(_));
    let waits = rule.on_limit.as_ref().is_some_and(|on_limit| on_limit.action == api::OnLimitAction::Wait);
    for (field, given) in [
        ("per", rule.per == api::Per::Message),
        ("cost", rule.cost.as_ref().is_some_and(is_later)),
        ("scope", rule.scope != api::Scope::Pod),
        ("onLimit.action", waits),
    ] {
        if given {
            faults.add(format!("{path}.{field}"), "is not valid with a concurrent limit: use another rule for it");
        }
    }
    let number = |concurrent: Option<i64>, path: &str, faults: &mut Faults| {
        faults.number(format!("{path}.concurrent"), concurrent.unwrap_or_default(), 1)
    };
    let own = number(*own, &path_of_limit, faults);
    let mut overrides = Vec::new();
    for (o, entry) in rule.overrides.iter().enumerate() {
        for (i, other) in entry.limits.iter().enumerate() {
            let path = format!("{path}.overrides[{o}].limits[{i}]");
            let api::OverrideLimit { name: other, requests, per, concurrent, burst, debt } = other;
            if other != name {
                faults.add(format!("{path}.name"), format!("the rule has no limit {other:?}: name one of its limits"));
            }
            for (field, given) in [
                ("requests", requests.is_some()),
                ("per", per.is_some()),
                ("burst", burst.is_some()),
                ("debt", debt.is_some()),
            ] {
                if given {
                    faults.add(format!("{path}.{field}"), "is not valid with concurrent: remove it");
                }
            }
            let limit = number(*concurrent, &path, faults);
            overrides.push(wire::ConcurrencyOverride { keys: entry.keys.clone(), limit });
        }
    }
    let smallest = overrides.iter().map(|entry| entry.limit).fold(own, u64::min);
    if let Some(api::Cost::Requests(requests)) = rule.cost
        && u64::try_from(requests).is_ok_and(|requests| requests > smallest)
    {
        let message = format!(
            "{requests} is more than the {smallest} that limit {name:?} allows in flight: lower the cost, or raise concurrent"
        );
        faults.add(format!("{path}.cost.requests"), message);
    }
    Some(wire::Concurrency { name: name.clone(), limit: own, overrides })
}

pub(super) fn limits(limits: &[api::Limit], path: &str, faults: &mut Faults) -> Vec<wire::Limit> {
    if limits.is_empty() {
        faults.add(format!("{path}.limits"), "a rule that limits must have at least one limit");
    }
    let mut compiled = Vec::with_capacity(limits.len());
    for (i, limit) in limits.iter().enumerate() {
        let path = format!("{path}.limits[{i}]");
        let api::Limit { name, requests, per, concurrent: _, burst, debt, strategy } = limit;
        let numbers =
            Numbers { name, strategy: *strategy, requests: *requests, per: per.as_ref(), burst: *burst, debt: *debt };
        compiled.extend(numbers.compile(&path, faults));
    }
    compiled
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
            faults
                .add(format!("{path}.name"), format!("the rule has no limit {:?}: name one of its limits", other.name));
            continue;
        };
        if other.concurrent.is_some() {
            faults.add(format!("{path}.concurrent"), "is valid only for a concurrent limit: remove it");
        }
        let strategy = limit.strategy;
        let api::OverrideLimit { name, requests, per, concurrent: _, burst, debt } = other;
        let numbers = Numbers { name, strategy, requests: *requests, per: per.as_ref(), burst: *burst, debt: *debt };
        replaced.extend(numbers.compile(&path, faults));
    }
    wire::Override { keys: entry.keys.clone(), limits: replaced }
}

/// Returns the highest cost that the limit can ever admit.
pub(super) fn most(limit: &wire::Limit) -> u64 {
    let waits = u64::from(limit.strategy == wire::Strategy::LeakyBucket);
    limit.burst.unwrap_or(limit.requests) + limit.debt.unwrap_or(0) + waits
}

/// The numbers of a limit as written in the policy.
struct Numbers<'a> {
    name: &'a str,
    strategy: api::Strategy,
    requests: Option<i64>,
    per: Option<&'a api::Period>,
    burst: Option<i64>,
    debt: Option<i64>,
}

impl Numbers<'_> {
    /// Returns `None` if the limit is no rate.
    fn compile(self, path: &str, faults: &mut Faults) -> Option<wire::Limit> {
        let Some((requests, per)) = self.requests.zip(self.per) else {
            faults.add(path, NO_RATE);
            return None;
        };
        let requests: u64 = faults.number(format!("{path}.requests"), requests, 1);
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
        Some(wire::Limit {
            name: self.name.to_owned(),
            strategy,
            requests,
            period_millis: per.as_millis(),
            burst: decided_burst,
            debt: overdrawn.then(|| debt.unwrap_or(0)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::{Quota, Strategy};

    use super::*;

    /// If the operator accepted more, agents would refuse the snapshot, and with it the rules of other policies.
    #[test]
    fn the_bounds_of_limits_are_those_of_agents() {
        let quota = |strategy, requests| Quota::new(strategy, requests, Duration::from_secs(1 << 20), None);
        for (strategy, most) in
            [(Strategy::SlidingWindowCounter, MOST_COUNTED), (Strategy::SlidingWindowLog, LONGEST_LOG)]
        {
            assert!(quota(strategy, most).is_ok() && quota(strategy, most + 1).is_err(), "{strategy:?}");
        }
        for (of_core, strategy) in [
            (Strategy::FixedWindow, wire::Strategy::FixedWindow),
            (Strategy::SlidingWindowCounter, wire::Strategy::SlidingWindowCounter),
            (Strategy::SlidingWindowLog, wire::Strategy::SlidingWindowLog),
            (Strategy::TokenBucket, wire::Strategy::TokenBucket),
            (Strategy::TokenBucketWithDebt, wire::Strategy::TokenBucketWithDebt),
            (Strategy::LeakyBucket, wire::Strategy::LeakyBucket),
            (Strategy::Gcra, wire::Strategy::Gcra),
        ] {
            let is_window =
                matches!(of_core, Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog);
            let (burst, debt) = ((!is_window).then_some(30), (of_core == Strategy::TokenBucketWithDebt).then_some(9));
            let quota = Quota::new(of_core, 7, Duration::from_secs(1), burst).unwrap();
            let quota = debt.map_or(quota, |debt| quota.with_debt(debt).unwrap());
            let limit = wire::Limit { name: "a".to_owned(), strategy, requests: 7, period_millis: 1000, burst, debt };
            assert_eq!(most(&limit), quota.most(), "{strategy:?}");
        }
    }
}
