//! Checks which fields of a policy fit its domain. CEL's cost budget does not suffice for these checks.
//!
//! The rules of a policy with a domain read descriptors, which a proxy sends to a rate limit service. A descriptor has
//! no method, no path and no body. The proxy decides on the status of a refusal and on waits.

use weir_api::{Action, KeyPart, Match, OnLimitAction, Per, RateLimitPolicySpec, Rule, Strategy};

use super::faults::Faults;

pub(super) fn check(spec: &RateLimitPolicySpec, faults: &mut Faults) {
    if spec.domain.is_some() && spec.deadline.is_some() {
        let message = "is not valid in a policy with domain: the proxy decides how long a request may take; remove it";
        faults.add("spec.deadline", message);
    }
    for (index, rule) in spec.rules.iter().enumerate() {
        let path = format!("spec.rules[{index}]");
        if spec.domain.is_some() {
            of_descriptors(rule, &path, faults);
            of_replaced(rule, &spec.rules, &path, faults);
            of_limit_override(rule, &path, faults);
        } else {
            of_requests(rule, &path, faults);
        }
    }
}

/// Checks a rule that reads descriptors.
fn of_descriptors(rule: &Rule, path: &str, faults: &mut Faults) {
    let mut unfit = |field: String, why: &str| {
        faults.add(format!("{path}.{field}"), format!("is not valid in a policy with domain: {why}"));
    };
    for (index, entry) in rule.matches.iter().enumerate() {
        for field in conditions_of_requests(entry) {
            unfit(format!("match[{index}].{field}"), "a descriptor has only entries; use descriptor");
        }
    }
    for (index, _) in rule.key.iter().enumerate().filter(|(_, part)| !matches!(part, KeyPart::Descriptor(_))) {
        unfit(format!("key[{index}]"), "a descriptor has only entries; use descriptor: and the key of an entry");
    }
    if rule.per == Per::Message {
        unfit("per".to_owned(), "the service receives no messages; remove it");
    }
    if rule.cost.is_some() {
        unfit("cost".to_owned(), "the proxy sends the cost as hits_addend; remove it");
    }
    if rule.limits.iter().any(|limit| limit.concurrent.is_some()) {
        unfit("limits".to_owned(), "the service does not see when a request ends; use requests and per");
    }
    let Some(on_limit) = &rule.on_limit else { return };
    if on_limit.action == OnLimitAction::Wait {
        unfit("onLimit.action".to_owned(), "the proxy does not wait for a turn; use action Reject");
    }
    if on_limit.status.is_some() {
        unfit("onLimit.status".to_owned(), "the proxy sets the status of refusals; remove it");
    }
}

/// Checks the names of the rules that a rule replaces.
fn of_replaced(rule: &Rule, rules: &[Rule], path: &str, faults: &mut Faults) {
    for (index, name) in rule.replaces.iter().enumerate() {
        if *name == rule.name || rules.iter().all(|other| other.name != *name) {
            let message = format!("{name:?} is not the name of another rule of this policy: correct it, or remove it");
            faults.add(format!("{path}.replaces[{index}]"), message);
        }
    }
}

/// Checks a rule that accepts limits of descriptors.
fn of_limit_override(rule: &Rule, path: &str, faults: &mut Faults) {
    let Some(own) = &rule.limit_override else { return };
    if own.max_requests > 1_000_000 && own.per.as_millis() < 1_000 {
        let message = "more than 1000000 requests need a per of 1s or more: write the same rate for a longer time";
        faults.add(format!("{path}.limitOverride.maxRequests"), message);
    }
    let has_log = rule.limits.iter().any(|limit| limit.strategy == Strategy::SlidingWindowLog);
    for (is_unfit, why) in [
        (rule.action != Action::Limit, "needs a rule with action Limit: remove it"),
        (
            rule.limits.len() != 1,
            "needs exactly one limit in limits, whose strategy it uses: move the others to another rule",
        ),
        (has_log, "is not valid with SlidingWindowLog, which remembers each request: use SlidingWindowCounter"),
        (rule.ban.is_some(), "is not valid with ban: remove one of them"),
    ] {
        if is_unfit {
            faults.add(format!("{path}.limitOverride"), why);
        }
    }
}

/// Checks a rule that reads requests.
fn of_requests(rule: &Rule, path: &str, faults: &mut Faults) {
    let matches = rule.matches.iter().enumerate().filter(|(_, entry)| !entry.descriptor.is_empty());
    let in_matches = matches.map(|(index, _)| format!("{path}.match[{index}].descriptor"));
    let parts = rule.key.iter().enumerate().filter(|(_, part)| matches!(part, KeyPart::Descriptor(_)));
    let in_key = parts.map(|(index, _)| format!("{path}.key[{index}].descriptor"));
    let replaces = (!rule.replaces.is_empty()).then(|| format!("{path}.replaces"));
    let limits = rule.limit_override.as_ref().map(|_| format!("{path}.limitOverride"));
    for field in in_matches.chain(in_key).chain(replaces).chain(limits) {
        faults.add(field, "is valid only in a policy with domain: add spec.domain, or use a part of the request");
    }
}

/// The conditions of an entry that read a request.
fn conditions_of_requests(entry: &Match) -> impl Iterator<Item = &'static str> {
    let Match {
        methods,
        hosts,
        paths,
        path_regexes,
        headers,
        query,
        client_cidrs,
        trusted_hops: _, // valid only with clientCIDRs or predicate
        predicate,
        descriptor: _,
    } = entry;
    let given = [
        ("methods", !methods.is_empty()),
        ("hosts", !hosts.is_empty()),
        ("paths", !paths.is_empty()),
        ("pathRegexes", !path_regexes.is_empty()),
        ("headers", !headers.is_empty()),
        ("query", !query.is_empty()),
        ("clientCIDRs", !client_cidrs.is_empty()),
        ("predicate", predicate.is_some()),
    ];
    given.into_iter().filter(|(_, is_given)| *is_given).map(|(field, _)| field)
}
