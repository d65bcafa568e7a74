//! Metric families about the rules in force.

use prometheus::proto::MetricFamily;
use weir_core::{KeySurvey, Strategy, Time};
use weir_enforce::{Policy, Rule, RulesInForce, over_budget};

use super::family::{counter, counters, gauges, histograms};

pub(super) fn families(rules: &RulesInForce, now: Time) -> [MetricFamily; 23] {
    let each = || rules.policies().iter().flat_map(|policy| policy.rules.iter().map(move |rule| (&**policy, &**rule)));
    let keyed = || each().filter_map(|(policy, rule)| Some((policy, rule, rule.keys()?)));
    let surveys: Vec<_> = each().filter_map(|(policy, rule)| Some((named(policy, rule), rule.survey(now)?))).collect();
    let of_keys =
        |share: fn(&KeySurvey) -> (u64, u64)| surveys.iter().map(move |(labels, survey)| (labels, share(survey)));
    let limits = || {
        each().flat_map(|(policy, rule)| {
            let [namespace, policy, rule_name] = named(policy, rule);
            let scope = ("scope", rule.scope());
            rule.limits().map(move |(limit, quota)| ([namespace, policy, rule_name, ("limit", limit), scope], quota))
        })
    };
    let in_flight = || {
        each().filter_map(|(policy, rule)| {
            let [namespace, policy, rule_name] = named(policy, rule);
            let (name, limit, count) = rule.in_flight()?;
            Some(([namespace, policy, rule_name, ("limit", name)], limit, count))
        })
    };
    let bans: Vec<_> = each()
        .filter_map(|(policy, rule)| Some((named(policy, rule), rule.statistics(), rule.banned_keys(now)?)))
        .collect();
    [
        gauges(
            "weir_banned_keys",
            "Keys that a rule has banned now.",
            bans.iter().map(|(labels, _, banned)| (labels, *banned)),
        ),
        counters(
            "weir_bans_started_total",
            "Bans of keys that a rule refused too often.",
            bans.iter().map(|(labels, counts, _)| (labels, counts.bans_started)),
        ),
        counters(
            "weir_ban_requests_total",
            "Requests of banned keys, by decision; each also counts in weir_requests_total.",
            bans.iter().flat_map(|([namespace, policy, rule], counts, _)| {
                [("limited", counts.banned), ("shadow_limited", counts.shadow_banned)]
                    .map(|(decision, count)| ([*namespace, *policy, *rule, ("decision", decision)], count))
            }),
        ),
        counters(
            "weir_ban_overflow_total",
            "Refusals that did not count for a ban because maxKeys other keys had refusals or bans.",
            bans.iter().map(|(labels, counts, _)| (labels, counts.ban_overflow)),
        ),
        counter(
            "weir_predicates_over_budget_total",
            "Predicates and regular expressions not run because they would have taken too long: limits count the request, Bypass does not match it.",
            over_budget(),
        ),
        counters(
            "weir_requests_total",
            "Requests and messages that a rule decided, by decision; a refused one counts only for the rule that refuses it.",
            each().flat_map(|(policy, rule)| decisions(policy, rule)),
        ),
        counter("weir_unmatched_requests_total", "Requests that no rule matched, which pass.", rules.unmatched()),
        histograms(
            "weir_wait_seconds",
            "Time that admitted requests waited for their turn; in shadow mode, the time that they would have waited.",
            each().filter(|(_, rule)| rule.is_patient()).map(|(policy, rule)| (named(policy, rule), rule.waits())),
        ),
        counters(
            "weir_deadline_expired_total",
            "Requests that the policy's deadline ended before the app answered, counted at the first matching rule.",
            each()
                .map(|(policy, rule)| (policy, rule, rule.statistics().expired))
                // A rule keeps its count after its policy loses the deadline.
                .filter(|(policy, rule, count)| (policy.has_deadline() && !rule.is_bypass()) || *count > 0)
                .map(|(policy, rule, count)| (named(policy, rule), count)),
        ),
        gauges(
            "weir_limit_requests",
            "Requests that a limit admits in each period, without overrides.",
            limits().map(|(labels, quota)| (labels, quota.requests())),
        ),
        gauges(
            "weir_limit_period_seconds",
            "The period of a limit, without overrides.",
            limits().map(|(labels, quota)| (labels, quota.period())),
        ),
        gauges(
            "weir_limit_burst",
            "Requests that a limit admits at once, or for LeakyBucket, that can wait at once; without overrides.",
            limits().filter(|(_, quota)| has_burst(quota.strategy())).map(|(labels, quota)| (labels, quota.burst())),
        ),
        gauges(
            "weir_rule_weighted",
            "1 for each rule whose requests can cost other than one unit of its limits; absent for other rules.",
            each().filter(|(_, rule)| rule.is_weighted()).map(|(policy, rule)| (named(policy, rule), 1_u64)),
        ),
        gauges(
            "weir_rule_headroom_ratio",
            "For a rule without a key: the remaining share of the limit with the smallest part of its requests left.",
            each().filter_map(|(policy, rule)| Some((named(policy, rule), rule.headroom(now)?))),
        ),
        gauges(
            "weir_in_flight_requests",
            "Requests in flight that a concurrent limit counts, weighted by their cost, of all keys together.",
            in_flight().map(|(labels, _, count)| (labels, count)),
        ),
        gauges(
            "weir_limit_in_flight_requests",
            "Maximum number of requests in flight that a concurrent limit allows for each key, without overrides.",
            in_flight().map(|(labels, limit, _)| (labels, limit)),
        ),
        gauges(
            "weir_key_table_keys",
            "Keys that a rule tracks now.",
            keyed().map(|(policy, rule, keys)| (named(policy, rule), keys.tracked)),
        ),
        gauges(
            "weir_key_table_capacity",
            "Maximum number of keys that a rule tracks.",
            keyed().map(|(policy, rule, keys)| (named(policy, rule), keys.capacity)),
        ),
        gauges(
            "weir_key_headroom_ratio",
            "The headroom share of the key that is nearest to its limit, among up to 4096 examined keys.",
            of_keys(|survey| (survey.remaining, survey.of)),
        ),
        gauges(
            "weir_key_exhausted_ratio",
            "The share of keys without headroom, among up to 4096 examined keys.",
            of_keys(|survey| (survey.exhausted, survey.keys.max(1))),
        ),
        counters(
            "weir_key_evictions_total",
            "Idle keys that a rule evicted to make room for others.",
            keyed().map(|(policy, rule, keys)| (named(policy, rule), keys.evicted)),
        ),
        counters(
            "weir_key_overflow_total",
            "Requests counted in the overflow of a keyed rule because its key table was full.",
            keyed().map(|(policy, rule, keys)| (named(policy, rule), keys.overflowed)),
        ),
        gauges(
            "weir_policy_info",
            "The policies in force, with the revision and the mode of each.",
            rules.policies().iter().map(|policy| (info(policy), 1_u64)),
        ),
    ]
}

fn named<'a>(policy: &'a Policy, rule: &'a Rule) -> [(&'static str, &'a str); 3] {
    [("namespace", &policy.namespace), ("policy", &policy.name), ("rule", &rule.name)]
}

fn info(policy: &Policy) -> [(&str, &str); 4] {
    [
        ("namespace", &policy.namespace),
        ("policy", &policy.name),
        ("revision", &policy.revision),
        ("mode", policy.mode()),
    ]
}

fn has_burst(strategy: Strategy) -> bool {
    match strategy {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => false,
        Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::LeakyBucket | Strategy::Gcra => true,
    }
}

fn decisions<'a>(policy: &'a Policy, rule: &'a Rule) -> impl Iterator<Item = ([(&'a str, &'a str); 4], u64)> {
    let statistics = rule.statistics();
    let decided = [
        ("allowed", statistics.allowed),
        ("limited", statistics.limited),
        ("shadow_limited", statistics.shadow_limited),
        ("bypassed", statistics.bypassed),
    ];
    let [namespace, policy_name, rule_name] = named(policy, rule);
    decided
        .into_iter()
        // A rule that changed from or to Bypass keeps the counts of its previous action.
        .filter(|&(decision, count)| (decision == "bypassed") == rule.is_bypass() || count > 0)
        .map(move |(decision, count)| ([namespace, policy_name, rule_name, ("decision", decision)], count))
}
