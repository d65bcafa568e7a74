//! Builds the part of a policy's status about its rules of scope Fleet. This module does no I/O and reads no clock.

use std::collections::HashMap;

use weir_api::{Fleet, FleetLimit, FleetRule};
use weir_wire::{Limit, OPERATOR_STORE, PolicyRules, Rule, Shared, Strategy};

use crate::{fleet::Usage, traffic::Counts};

/// How the operator counts for one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetCounts {
    /// How many pods may decide with their share, and into how many shares they divide the limits.
    pub pods_with_share: Vec<(u32, u32)>,
    /// The number of keys of each rule of scope Fleet that has keys, by its name.
    pub keys: HashMap<String, usize>,
}

impl FleetCounts {
    /// Selects the counts of a policy.
    pub fn of(policy: &PolicyRules, usage: &Usage) -> Self {
        if counted(policy).next().is_none() {
            return Self::default();
        }
        let name = format!("{}/{}", policy.namespace, policy.name);
        // The counter knows no policy that is in no pod.
        let pods_with_share = usage.policies.get(&*name).cloned().unwrap_or_default();
        let keys = counted(policy).filter_map(|(rule, shared)| {
            let keys = usage.keys.get(&shared.counters)?;
            Some((rule.name.clone(), *keys))
        });
        Self { pods_with_share, keys: keys.collect() }
    }
}

/// Returns the status; `None` if the policy has no rule of scope Fleet. `traffic` contains each rule's traffic.
pub fn build_fleet(policy: &PolicyRules, counts: &FleetCounts, traffic: &[(String, Counts)]) -> Option<Fleet> {
    let demand = |rule: &Rule| {
        let counts = traffic.iter().find(|(name, _)| *name == rule.name).map(|(_, counts)| *counts).unwrap_or_default();
        counts.allowed.saturating_add(counts.limited)
    };
    let by_rule: Vec<FleetRule> = counted(policy)
        .map(|(rule, _)| FleetRule {
            name: rule.name.clone(),
            demand: to_i64(demand(rule)),
            keys: counts.keys.get(&rule.name).map_or(0, |keys| i64::try_from(*keys).unwrap_or(i64::MAX)),
            limits: rule.limits.iter().map(|limit| fleet_limit(limit, counts)).collect(),
        })
        .collect();
    let pods_with_share = counts.pods_with_share.iter().map(|(pods, _)| pods).sum::<u32>();
    let pods_with_share = i32::try_from(pods_with_share).unwrap_or(i32::MAX);
    (!by_rule.is_empty()).then_some(Fleet { pods_with_share, by_rule })
}

fn fleet_limit(limit: &Limit, counts: &FleetCounts) -> FleetLimit {
    let shares = counts.pods_with_share.iter().map(|&(pods, sharers)| {
        let (pods, sharers) = (u64::from(pods), u64::from(sharers.max(1)));
        match limit.strategy {
            // A share has whole requests in each window.
            Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => {
                pods.saturating_mul((limit.requests / sharers).max(1))
            }
            // A share has a part of the rate, with a longer period.
            Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::LeakyBucket | Strategy::Gcra => {
                pods.saturating_mul(limit.requests).div_ceil(sharers)
            }
        }
    });
    let shares_out = shares.fold(0, u64::saturating_add);
    FleetLimit {
        name: limit.name.clone(),
        limit: to_i64(limit.requests),
        shares_out: to_i64(shares_out),
        reserve: to_i64(shares_out.min(limit.requests)),
    }
}

/// The rules that the operator counts.
fn counted(policy: &PolicyRules) -> impl Iterator<Item = (&Rule, &Shared)> {
    let shared = policy.rules.iter().filter_map(|rule| Some((rule, rule.shared.as_ref()?)));
    shared.filter(|(_, shared)| shared.store == OPERATOR_STORE)
}

fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{compile::compile, world::ObjectKey};

    fn policy() -> PolicyRules {
        let rule = |name: &str, scope: &str, strategy: &str, requests: u64| {
            json!({"name": name, "scope": scope, "key": [{"header": "user"}],
                "limits": [{"name": "a", "requests": requests, "per": "1m", "strategy": strategy}]})
        };
        let rules = [
            rule("window", "Fleet", "FixedWindow", 100),
            rule("alone", "Pod", "FixedWindow", 100),
            rule("bucket", "Fleet", "TokenBucket", 100),
            rule("small", "Fleet", "SlidingWindowLog", 2),
        ];
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules});
        let (policy, _) =
            compile(&ObjectKey::new("shop", "api"), "uid", &serde_json::from_value(spec).unwrap()).unwrap();
        policy.wire.clone()
    }

    fn usage(pods_with_share: &[(u32, u32)]) -> Usage {
        let policies = [("shop/api".into(), pods_with_share.to_vec()), ("shop/other".into(), vec![(9, 9)])];
        let keys = [("shop/api.bucket".to_owned(), 7), ("shop/other.window".to_owned(), 3)];
        Usage { policies: policies.into(), keys: keys.into() }
    }

    /// The limits of each rule: the shares of all pods that have one, and what is kept free.
    fn shares(pods_with_share: &[(u32, u32)]) -> Vec<(i64, i64)> {
        let policy = policy();
        let fleet = build_fleet(&policy, &FleetCounts::of(&policy, &usage(pods_with_share)), &[]).unwrap();
        let pods: u32 = pods_with_share.iter().map(|(pods, _)| pods).sum();
        assert_eq!(fleet.pods_with_share, i32::try_from(pods).unwrap());
        fleet.by_rule.iter().map(|rule| (rule.limits[0].shares_out, rule.limits[0].reserve)).collect()
    }

    #[test]
    fn shares_are_whole_requests_of_windows_and_parts_of_rates() {
        assert_eq!(shares(&[]), [(0, 0), (0, 0), (0, 0)]);
        assert_eq!(shares(&[(1, 3)]), [(33, 33), (34, 34), (1, 1)]);
        assert_eq!(shares(&[(2, 3)]), [(66, 66), (67, 67), (2, 2)]);
        assert_eq!(shares(&[(3, 3)]), [(99, 99), (100, 100), (3, 2)]);
        // One pod was cut off before the others came.
        assert_eq!(shares(&[(1, 2), (2, 8)]), [(50 + 2 * 12, 74), (50 + 25, 75), (3, 2)]);
    }

    #[test]
    fn a_rule_has_its_own_demand_and_keys() {
        let policy = policy();
        let traffic = [
            ("bucket".to_owned(), Counts { allowed: 5, limited: 2, ..Counts::default() }),
            ("alone".to_owned(), Counts { allowed: 100, ..Counts::default() }),
        ];
        let fleet = build_fleet(&policy, &FleetCounts::of(&policy, &usage(&[(1, 4)])), &traffic).unwrap();
        let told: Vec<_> = fleet.by_rule.iter().map(|rule| (rule.name.as_str(), rule.demand, rule.keys)).collect();
        assert_eq!(told, [("window", 0, 0), ("bucket", 7, 7), ("small", 0, 0)]);
        assert_eq!(fleet.by_rule[1].limits[0].limit, 100);
    }

    #[test]
    fn a_policy_without_pods_or_without_such_rules_has_no_shares() {
        let mut policy = policy();
        let nothing = Usage::default();
        let counts = FleetCounts::of(&policy, &nothing);
        assert_eq!(counts.pods_with_share, []);
        assert!(build_fleet(&policy, &counts, &[]).is_some());
        policy.rules.retain(|rule| rule.name == "alone");
        assert_eq!(FleetCounts::of(&policy, &usage(&[(1, 4)])), FleetCounts::default());
        assert_eq!(build_fleet(&policy, &FleetCounts::default(), &[]), None);
    }
}
