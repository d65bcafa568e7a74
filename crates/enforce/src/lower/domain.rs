//! Checks which parts of a policy fit its domain: rules of a policy with a domain read only descriptors, and other rules
//! read none.

use weir_wire::{KeyPart, Match, Per, PolicyRules, Rule};

use super::{
    faults::{Faults, Path},
    limit_override,
};

/// The longest domain of a rate limit service, in bytes.
pub const MAX_DOMAIN_BYTES: usize = 512;

pub(super) fn check(policy: &PolicyRules, path: &Path, faults: &mut Faults) {
    let Some(domain) = &policy.domain else {
        for (rule, path) in rules(policy, path) {
            of_requests(rule, &path, faults);
        }
        return;
    };
    if domain.is_empty() || domain.len() > MAX_DOMAIN_BYTES {
        faults.add(&path.field("domain"), format!("must have 1 to {MAX_DOMAIN_BYTES} bytes"));
    }
    if policy.deadline_millis.is_some() {
        faults.add(&path.field("deadlineMillis"), "has no meaning for descriptors: remove it");
    }
    for (rule, path) in rules(policy, path) {
        of_descriptors(rule, &path, faults);
        limit_override::check(rule, &path, faults);
        for (index, name) in rule.replaces.iter().enumerate() {
            if *name == rule.name || policy.rules.iter().all(|other| other.name != *name) {
                let message = "must be the name of another rule of the policy";
                faults.add(&path.field("replaces").index(index), message);
            }
        }
    }
}

fn rules<'a>(policy: &'a PolicyRules, path: &Path) -> impl Iterator<Item = (&'a Rule, Path)> {
    let rules = path.field("rules");
    policy.rules.iter().enumerate().map(move |(index, rule)| (rule, rules.index(index)))
}

fn of_descriptors(rule: &Rule, path: &Path, faults: &mut Faults) {
    for (index, entry) in rule.matches.iter().enumerate() {
        if (Match { descriptor: entry.descriptor.clone(), ..Match::default() }) != *entry {
            let message = "has a condition on requests, and the policy has a domain: use only descriptor";
            faults.add(&path.field("match").index(index), message);
        }
    }
    for (index, _) in rule.key.iter().enumerate().filter(|(_, part)| !matches!(part, KeyPart::Descriptor(_))) {
        let message = "is a part of requests, and the policy has a domain: use descriptor";
        faults.add(&path.field("key").index(index), message);
    }
    let waits = rule.on_limit.as_ref().is_some_and(|form| form.max_wait_millis.is_some());
    for (field, given) in [
        ("per", rule.per != Per::Request),
        ("cost", rule.cost.is_some()),
        ("concurrency", rule.concurrency.is_some()),
        ("onLimit.maxWaitMillis", waits),
    ] {
        if given {
            faults.add(&path.field(field), "has no meaning for descriptors: remove it, or remove the domain");
        }
    }
}

fn of_requests(rule: &Rule, path: &Path, faults: &mut Faults) {
    if !rule.replaces.is_empty() {
        faults.add(&path.field("replaces"), "needs a policy with a domain: remove it");
    }
    if rule.limit_override.is_some() {
        faults.add(&path.field("limitOverride"), "needs a policy with a domain: remove it");
    }
    for (index, _) in rule.matches.iter().enumerate().filter(|(_, entry)| !entry.descriptor.is_empty()) {
        let message = "needs a policy with a domain: add it, or use a condition on requests";
        faults.add(&path.field("match").index(index).field("descriptor"), message);
    }
    for (index, _) in rule.key.iter().enumerate().filter(|(_, part)| matches!(part, KeyPart::Descriptor(_))) {
        let message = "needs a policy with a domain: add it, or use a part of requests";
        faults.add(&path.field("key").index(index).field("descriptor"), message);
    }
}
