//! Builds the part of a policy's status about its rules of scope Fleet. This module does no I/O and reads no clock.

use std::{cmp::Reverse, collections::HashMap};

use jiff::Timestamp;
use weir_api::{Fleet, FleetLimit, FleetRule};
use weir_wire::{Limit, PolicyRules, Rule, Shared, Strategy};

use crate::{
    fleet::{FewPods, Usage},
    traffic::Counts,
};

/// The maximum number of rules that a message names.
const NAMED: usize = 3;

/// How the operator counts for one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetCounts {
    /// How many pods may decide with their share, and into how many shares they divide the limits.
    pub pods_with_share: Vec<(u32, u32)>,
    /// The number of keys of each rule of scope Fleet that has keys, by its name.
    pub keys: HashMap<String, usize>,
    /// The rules whose limits count as used up, and the reason. None if all limits are known or at full credit.
    pub used_up: Option<UsedUpRules>,
    /// What users should know about pods whose deletion does not end.
    pub leaving: Option<String>,
}

/// The rules whose limits count as used up, because the operator does not know what agents used before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedUpRules {
    /// The time since which they count as used up.
    pub since: Timestamp,
    /// The names of the rules, each with the time at which it is at full credit again. The latest comes first.
    pub rules: Vec<(String, Timestamp)>,
    /// The pods that did not answer the new leader.
    pub missing: FewPods,
    /// The pods whose agents could not report all keys.
    pub incomplete: FewPods,
}

impl FleetCounts {
    /// Selects the counts of a policy.
    pub fn of(policy: &PolicyRules, usage: &Usage, now: Timestamp) -> Self {
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
        let leaving = usage.leaving.get(&*name).map(|pods| leaving_message(&policy.namespace, pods));
        Self { pods_with_share, keys: keys.collect(), used_up: UsedUpRules::of(policy, &name, usage, now), leaving }
    }
}

/// Returns the message about pods of this namespace whose deletion does not end.
fn leaving_message(namespace: &str, pods: &FewPods) -> String {
    let FewPods { count, first } = pods;
    let names = |separator| first.iter().map(|name| &**name).collect::<Vec<_>>().join(separator);
    let more = count - first.len();
    let more = if more > 0 { format!(", {more} more") } else { String::new() };
    format!(
        "pods that are being deleted do not reach the operator, which keeps their shares free until they are gone: {}{more}; \
         if their nodes are off, run kubectl delete pod -n {namespace} --force {}",
        names(", "),
        names(" ")
    )
}

impl UsedUpRules {
    fn of(policy: &PolicyRules, name: &str, usage: &Usage, now: Timestamp) -> Option<Self> {
        let used_up = usage.used_up.as_ref()?;
        let rules = counted(policy).filter(|(_, shared)| used_up.rules.contains_key(&shared.counters));
        let mut rules: Vec<_> = rules
            .map(|(rule, _)| (rule.name.clone(), time(full_at(rule, used_up.since))))
            .filter(|(_, full_at)| *full_at > now)
            .collect();
        rules.sort_by(|(a, a_at), (b, b_at)| (Reverse(a_at), a).cmp(&(Reverse(b_at), b)));
        let (missing, incomplete) = (used_up.unknown.missing(name), used_up.unknown.incomplete(name));
        (!rules.is_empty()).then_some(Self { since: time(used_up.since), rules, missing, incomplete })
    }

    /// Returns the message of the condition `FleetDegraded`. Its length and its words depend on no time that passes.
    pub fn message(&self) -> String {
        let rules = self.rules.iter().map(|(name, full_at)| format!("{name} at {full_at:.0}"));
        let mut rules: Vec<String> = rules.take(NAMED).collect();
        if self.rules.len() > NAMED {
            rules.push(format!("{} more before", self.rules.len() - NAMED));
        }
        let pods = |pods: &FewPods, what: &str| {
            let names = pods.first.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
            let more = pods.count.saturating_sub(pods.first.len());
            let more = if more > 0 { format!(", {more} more") } else { String::new() };
            (pods.count > 0).then(|| format!("{what} {names}{more}"))
        };
        let why = [
            pods(&self.missing, "not reported by"),
            pods(&self.incomplete, "not completely reported, because there are too many keys, by"),
        ];
        let mut why = why.into_iter().flatten().collect::<Vec<_>>().join("; ");
        if why.is_empty() {
            "not all pods were listed".clone_into(&mut why);
        }
        format!(
            "the operator does not know all counts of the previous leader ({why}), so limits count as used up since {:.0} \
             and are at full credit again: {}",
            self.since,
            rules.join(", ")
        )
    }
}

/// The time at which the limits of a rule are at full credit again if they were used up at this time, in microseconds.
/// Limits that descriptors contain are not included.
fn full_at(rule: &Rule, since: u64) -> u64 {
    let limits = rule.limits.iter().chain(rule.overrides.iter().flat_map(|it| &it.limits));
    let full_at = limits.map(|limit| {
        let Limit { name: _, strategy, requests, period_millis, burst, debt } = limit;
        let period = period_millis.saturating_mul(1_000).max(1);
        let window = since - since % period;
        let refill = |units: u64| {
            let micros = (u128::from(units) * u128::from(period)).div_ceil(u128::from((*requests).max(1)));
            since.saturating_add(u64::try_from(micros).unwrap_or(u64::MAX))
        };
        match strategy {
            Strategy::FixedWindow => window.saturating_add(period),
            Strategy::SlidingWindowCounter => window.saturating_add(period.saturating_mul(2)),
            Strategy::SlidingWindowLog => since.saturating_add(period),
            Strategy::TokenBucket => refill(burst.unwrap_or(*requests)),
            Strategy::TokenBucketWithDebt => refill(burst.unwrap_or(*requests).saturating_add(debt.unwrap_or(0))),
            // Its requests leave one by one.
            Strategy::LeakyBucket => refill(1),
            Strategy::Gcra => refill(burst.unwrap_or(1)),
        }
    });
    full_at.max().unwrap_or(since)
}

/// The time of these microseconds of Unix time, in whole seconds. A part of a second counts as a whole one.
fn time(micros: u64) -> Timestamp {
    let seconds = i64::try_from(micros.div_ceil(1_000_000)).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

/// Returns the status, or `None` if the policy has no rule of scope Fleet. `traffic` contains each rule's traffic.
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
    shared.filter(|(_, shared)| shared.is_fleet())
}

fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::json;
    use weir_core::Quota;
    use weir_seats::{StoreTerms, Value};

    use super::*;
    use crate::{
        compile::compile,
        fleet::{self, UnknownUse},
        world::ObjectKey,
    };

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

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
        Usage { policies: policies.into(), keys: keys.into(), used_up: None, leaving: HashMap::new() }
    }

    /// The limits of each rule: the shares of all pods that have one, and what is kept free.
    fn shares(pods_with_share: &[(u32, u32)]) -> Vec<(i64, i64)> {
        let policy = policy();
        let fleet = build_fleet(&policy, &FleetCounts::of(&policy, &usage(pods_with_share), NOW), &[]).unwrap();
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
        let fleet = build_fleet(&policy, &FleetCounts::of(&policy, &usage(&[(1, 4)]), NOW), &traffic).unwrap();
        let told: Vec<_> = fleet.by_rule.iter().map(|rule| (rule.name.as_str(), rule.demand, rule.keys)).collect();
        assert_eq!(told, [("window", 0, 0), ("bucket", 7, 7), ("small", 0, 0)]);
        assert_eq!(fleet.by_rule[1].limits[0].limit, 100);
    }

    #[test]
    fn a_policy_without_pods_or_without_such_rules_has_no_shares() {
        let mut policy = policy();
        let nothing = Usage::default();
        let counts = FleetCounts::of(&policy, &nothing, NOW);
        assert_eq!(counts.pods_with_share, []);
        assert!(build_fleet(&policy, &counts, &[]).is_some());
        policy.rules.retain(|rule| rule.name == "alone");
        assert_eq!(FleetCounts::of(&policy, &usage(&[(1, 4)]), NOW), FleetCounts::default());
        assert_eq!(build_fleet(&policy, &FleetCounts::default(), &[]), None);
    }

    /// The counts of the previous leader are unknown since a quarter of a second after 12:00:10 on 15 January 2026.
    fn unknown(rules: &[&str], unknown: UnknownUse) -> Usage {
        let rules = rules.iter().map(|rule| (format!("shop/api.{rule}"), "shop/api".into())).collect();
        let since = 1_768_478_410_250_000;
        let used_up = fleet::UsedUp { since, rules: Arc::new(rules), unknown: Arc::new(unknown) };
        Usage { used_up: Some(used_up), ..usage(&[]) }
    }

    fn message(usage: &Usage, now: &str) -> Option<String> {
        FleetCounts::of(&policy(), usage, now.parse().unwrap()).used_up.map(|used_up| used_up.message())
    }

    #[test]
    fn unknown_counts_name_the_rules_the_pods_and_the_time_until_all_limits_are_at_full_credit() {
        let mut pods = UnknownUse::default();
        for name in ["d", "b", "c", "a"] {
            pods.record_missing(&name.into(), [&"shop/other".into(), &"shop/api".into()].into_iter());
        }
        pods.record_incomplete(&"e".into(), [&"shop/api".into()].into_iter());
        pods.record_missing(&"f".into(), [&"bank/api".into()].into_iter());
        let usage = unknown(&["window", "bucket", "alone"], pods);
        let known = "the operator does not know all counts of the previous leader (not reported by a, b, c, 1 more; not \
                     completely reported, because there are too many keys, by e), so limits count as used up since \
                     2026-01-15T12:00:11Z and are at full credit again: ";
        let both = format!("{known}bucket at 2026-01-15T12:01:11Z, window at 2026-01-15T12:01:00Z");
        assert_eq!(message(&usage, "2026-01-15T12:00:12Z").as_deref(), Some(&*both));
        assert_eq!(message(&usage, "2026-01-15T12:00:59Z").as_deref(), Some(&*both), "its words depend on the time");
        let one = format!("{known}bucket at 2026-01-15T12:01:11Z");
        assert_eq!(message(&usage, "2026-01-15T12:01:00Z"), Some(one));
        assert_eq!(message(&usage, "2026-01-15T12:01:11Z"), None);
        assert_eq!(message(&unknown(&["alone"], UnknownUse::default()), "2026-01-15T12:00:12Z"), None);
        let unlisted = message(&unknown(&["window"], UnknownUse::default()), "2026-01-15T12:00:12Z").unwrap();
        assert!(unlisted.contains("(not all pods were listed)"), "{unlisted}");
    }

    #[test]
    fn pods_whose_deletion_does_not_end_are_named_with_the_command_that_ends_it() {
        let mut pods = FewPods { count: 5, ..FewPods::default() };
        pods.first = ["a".into(), "b".into(), "c".into()].into();
        let usage = Usage { leaving: [("shop/api".into(), pods)].into(), ..usage(&[(5, 8)]) };
        assert_eq!(
            FleetCounts::of(&policy(), &usage, NOW).leaving.as_deref(),
            Some(
                "pods that are being deleted do not reach the operator, which keeps their shares free until they are \
                 gone: a, b, c, 2 more; if their nodes are off, run kubectl delete pod -n shop --force a b c"
            )
        );
    }

    #[test]
    fn a_message_about_unknown_counts_is_short() {
        let mut pods = UnknownUse::default();
        for number in 0..10_000 {
            let name = format!("{number:0>253}").into();
            pods.record_missing(&name, [&"shop/api".into()].into_iter());
            pods.record_incomplete(&name, [&"shop/api".into()].into_iter());
        }
        let mut used_up = FleetCounts::of(&policy(), &unknown(&["window"], pods), NOW).used_up.unwrap();
        used_up.rules = (0..64).map(|number| (format!("{number:0>63}"), NOW)).collect();
        let message = used_up.message();
        assert!(message.len() < 2_500 && message.ends_with("61 more before"), "{} bytes: {message}", message.len());
    }

    /// The time is that of the counter's arithmetic.
    #[test]
    fn a_used_up_limit_is_at_full_credit_when_the_counter_says_so() {
        let since = 1_768_478_410_250_000;
        for (strategy, of_core, burst, debt) in [
            (Strategy::FixedWindow, weir_core::Strategy::FixedWindow, None, None),
            (Strategy::SlidingWindowCounter, weir_core::Strategy::SlidingWindowCounter, None, None),
            (Strategy::SlidingWindowLog, weir_core::Strategy::SlidingWindowLog, None, None),
            (Strategy::TokenBucket, weir_core::Strategy::TokenBucket, Some(30), None),
            (Strategy::TokenBucket, weir_core::Strategy::TokenBucket, None, None),
            (Strategy::TokenBucketWithDebt, weir_core::Strategy::TokenBucketWithDebt, Some(30), Some(9)),
            (Strategy::LeakyBucket, weir_core::Strategy::LeakyBucket, Some(30), None),
            (Strategy::Gcra, weir_core::Strategy::Gcra, Some(5), None),
            (Strategy::Gcra, weir_core::Strategy::Gcra, None, None),
        ] {
            let quota = Quota::new(of_core, 7, Duration::from_secs(3_600), burst).unwrap();
            let quota = debt.map_or(quota, |debt| quota.with_debt(debt).unwrap());
            let terms = StoreTerms::new(1, &[(0, quota)]).unwrap();
            let mut value = Value::new(1, terms.raw(), since);
            value.use_up(since);
            let mut rule = policy().rules[0].clone();
            rule.limits[0] =
                Limit { strategy, requests: 7, period_millis: 3_600_000, burst, debt, ..rule.limits[0].clone() };
            assert_eq!(full_at(&rule, since), value.full_at(), "{strategy:?} {burst:?}");
        }
    }
}
