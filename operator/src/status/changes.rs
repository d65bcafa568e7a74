//! Describes the difference between two revisions of a policy's rules, for an Event.

use weir_wire::{Concurrency, Limit, Mode, PolicyRules, Rule, Shared, Strategy};

/// The maximum number of differences in the text.
const MOST: usize = 5;

/// Returns the differences as text; empty if none is visible.
pub fn describe(old: &PolicyRules, new: &PolicyRules) -> String {
    let mut changes = Vec::new();
    if old.mode != new.mode {
        changes.push(format!("mode {:?} to {:?}", old.mode, new.mode));
    }
    if old.domain != new.domain {
        let named = |domain: &Option<String>| domain.as_ref().map_or("none".to_owned(), |domain| format!("{domain:?}"));
        changes.push(format!("domain {} to {}", named(&old.domain), named(&new.domain)));
    }
    if old.deadline_millis != new.deadline_millis {
        let spelled = |millis: Option<u64>| millis.map_or_else(|| "none".to_owned(), period);
        changes.push(format!("deadline {} to {}", spelled(old.deadline_millis), spelled(new.deadline_millis)));
    }
    if old.on_deadline != new.on_deadline {
        changes.push("response after the deadline changed".to_owned());
    }
    for rule in &new.rules {
        match old.rules.iter().find(|before| before.name == rule.name) {
            Some(before) => describe_rule(before, rule, &mut changes),
            None => changes.push(format!("rule {} added", rule.name)),
        }
    }
    for rule in old.rules.iter().filter(|rule| new.rules.iter().all(|after| after.name != rule.name)) {
        changes.push(format!("rule {} removed", rule.name));
    }
    if changes.len() > MOST {
        let more = changes.len() - MOST;
        changes.truncate(MOST);
        changes.push(format!("{more} more"));
    }
    changes.join(", ")
}

fn describe_rule(old: &Rule, new: &Rule, changes: &mut Vec<String>) {
    let name = &new.name;
    let numbers_before = changes.len();
    if old.mode != new.mode {
        let spelled =
            |mode: Option<Mode>| mode.map_or_else(|| "that of the policy".to_owned(), |mode| format!("{mode:?}"));
        changes.push(format!("mode of rule {name}: {} to {}", spelled(old.mode), spelled(new.mode)));
    }
    for limit in &new.limits {
        match old.limits.iter().find(|before| before.name == limit.name) {
            Some(before) if before == limit => {}
            Some(before) => {
                let [from, to] = if before.strategy == limit.strategy {
                    [before, limit].map(describe_limit)
                } else {
                    [before, limit].map(|limit| format!("{} {}", strategy(limit.strategy), describe_limit(limit)))
                };
                changes.push(format!("{name}/{} {from} to {to}", limit.name));
            }
            None => changes.push(format!("{name}/{} added: {}", limit.name, describe_limit(limit))),
        }
    }
    for limit in old.limits.iter().filter(|limit| new.limits.iter().all(|after| after.name != limit.name)) {
        changes.push(format!("{name}/{} removed", limit.name));
    }
    let concurrency = match (&old.concurrency, &new.concurrency) {
        (Some(before), Some(after)) if before.name == after.name => {
            if before.limit != after.limit {
                changes.push(format!("{name}/{} {} to {} in flight", after.name, before.limit, after.limit));
            }
            Some(Concurrency { limit: before.limit, ..after.clone() })
        }
        (_, after) => after.clone(),
    };
    let (old, new) = (without_bookkeeping(old), without_bookkeeping(new));
    let otherwise_equal = Rule { limits: old.limits.clone(), mode: old.mode, concurrency, ..new.clone() } == old;
    if !otherwise_equal || (changes.len() == numbers_before && old != new) {
        changes.push(format!("rule {name} changed"));
    }
}

/// Returns the rule without the values that the operator counts itself, because no user changed them.
fn without_bookkeeping(rule: &Rule) -> Rule {
    let shared = rule.shared.clone().map(|shared| Shared { stamp: 0, sharers: 1, ..shared });
    Rule { shared, ..rule.clone() }
}

/// Returns the name of a strategy as in a policy.
fn strategy(strategy: Strategy) -> String {
    match strategy {
        Strategy::Gcra => "GCRA".to_owned(),
        other => format!("{other:?}"),
    }
}

fn describe_limit(limit: &Limit) -> String {
    let Limit { name: _, strategy: _, requests, period_millis, burst, debt } = limit;
    let mut text = format!("{requests} per {}", period(*period_millis));
    if let Some(burst) = burst.filter(|burst| burst != requests) {
        text.push_str(&format!(" (burst {burst})"));
    }
    if let Some(debt) = debt.filter(|&debt| debt != 0) {
        text.push_str(&format!(" (debt {debt})"));
    }
    text
}

/// Formats a period as in GEP-2257: `90m` becomes `1h30m`.
fn period(millis: u64) -> String {
    let mut rest = millis;
    let mut text = String::new();
    for (unit, length) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
        if rest >= length {
            text.push_str(&format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use weir_wire::{Action, Mode, OnDeadline};

    use super::*;

    fn rules(mode: Mode, limits: &[(&str, u64, u64)]) -> PolicyRules {
        let limit = |&(name, requests, period_millis): &(&str, u64, u64)| Limit {
            name: name.to_owned(),
            strategy: Strategy::TokenBucket,
            requests,
            period_millis,
            burst: Some(requests),
            debt: None,
        };
        let rule = Rule {
            limits: limits.iter().map(limit).collect(),
            ..Rule::without_limits("all".to_owned(), Action::Limit, Vec::new())
        };
        let [uid, namespace, name, revision] = ["u", "shop", "a", "r"].map(str::to_owned);
        PolicyRules {
            uid,
            namespace,
            name,
            revision,
            mode,
            domain: None,
            deadline_millis: None,
            on_deadline: None,
            rules: vec![rule],
        }
    }

    #[test]
    fn a_changed_concurrent_limit_is_described() {
        let of = |limit: u64, name: &str| {
            let mut policy = rules(Mode::Enforce, &[]);
            let concurrency = Concurrency { name: name.to_owned(), limit, overrides: Vec::new() };
            policy.rules[0].concurrency = Some(concurrency);
            policy
        };
        assert_eq!(describe(&of(10, "parallel"), &of(20, "parallel")), "all/parallel 10 to 20 in flight");
        assert_eq!(describe(&of(10, "parallel"), &of(10, "other")), "rule all changed");
        assert_eq!(describe(&of(10, "parallel"), &of(10, "parallel")), "");
    }

    #[test]
    fn changed_numbers_are_described_before_and_after() {
        let of = |limits: &[(&str, u64, u64)]| rules(Mode::Enforce, limits);
        let (old, shadow) =
            (of(&[("second", 50, 1000), ("hour", 7, 3_600_000)]), rules(Mode::Shadow, &[("second", 50, 1000)]));
        let more = of(&[("second", 50, 500), ("hour", 7, 3_600_000), ("half", 9, 5_400_000)]);
        for (what, new, expected) in [
            ("nothing", old.clone(), ""),
            ("one number", of(&[("second", 100, 1000), ("hour", 7, 3_600_000)]), "all/second 50 per 1s to 100 per 1s"),
            ("another mode and one limit fewer", shadow, "mode Enforce to Shadow, all/hour removed"),
            (
                "another period and one limit more",
                more,
                "all/second 50 per 1s to 50 per 500ms, all/half added: 9 per 1h30m",
            ),
        ] {
            assert_eq!(describe(&old, &new), expected, "{what}");
        }
    }

    #[test]
    fn changed_strategies_debts_and_deadlines_are_described() {
        let old = rules(Mode::Enforce, &[("second", 50, 1000)]);
        let mut new = old.clone();
        new.deadline_millis = Some(1500);
        new.rules[0].limits[0].strategy = Strategy::TokenBucketWithDebt;
        new.rules[0].limits[0].debt = Some(9);
        let limit = "all/second TokenBucket 50 per 1s to TokenBucketWithDebt 50 per 1s (debt 9)";
        assert_eq!(describe(&old, &new), format!("deadline none to 1s500ms, {limit}"));
        assert!(describe(&new, &old).starts_with("deadline 1s500ms to none, "));
        let mut other = new.clone();
        other.on_deadline = Some(OnDeadline { status: 503, body: None, content_type: None });
        assert_eq!(describe(&new, &other), "response after the deadline changed");
        other = old.clone();
        other.domain = Some("shop".to_owned());
        assert_eq!(describe(&old, &other), "domain none to \"shop\"");
    }

    #[test]
    fn strategies_have_the_names_of_the_policy() {
        for strategy in [
            Strategy::FixedWindow,
            Strategy::SlidingWindowCounter,
            Strategy::SlidingWindowLog,
            Strategy::TokenBucketWithDebt,
            Strategy::LeakyBucket,
            Strategy::Gcra,
        ] {
            let old = rules(Mode::Enforce, &[("second", 50, 1000)]);
            let mut new = old.clone();
            new.rules[0].limits[0].strategy = strategy;
            let name = serde_json::to_value(strategy).expect("a text");
            let expected = format!("all/second TokenBucket 50 per 1s to {} 50 per 1s", name.as_str().expect("a text"));
            assert_eq!(describe(&old, &new), expected);
        }
    }

    #[test]
    fn other_changes_are_described_by_the_rules_name() {
        let old = rules(Mode::Enforce, &[("second", 50, 1000)]);
        let mut new = old.clone();
        new.rules[0].max_keys = Some(3);
        assert_eq!(describe(&old, &new), "rule all changed");
        new = old.clone();
        new.rules[0].mode = Some(Mode::Shadow);
        assert_eq!(describe(&old, &new), "mode of rule all: that of the policy to Shadow");
        assert_eq!(describe(&new, &old), "mode of rule all: Shadow to that of the policy");
        new.rules[0].name = "other".to_owned();
        assert_eq!(describe(&old, &new), "rule other added, rule all removed");
    }
}
