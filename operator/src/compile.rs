//! Policies to rules: what a person wrote to what an agent enforces, with every default decided.
//!
//! Pure, and done once per generation: [`Compiler`] keeps what it compiled. What cannot be compiled keeps the last
//! good rules in force and says what is wrong. Whether a policy is reasonable is not judged here; the schema and the
//! CEL rules of `weir-api` do that.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::Selector;
use serde::Serialize;
use sha2::{Digest, Sha256};
use weir_api::{self as api, RateLimitPolicySpec};
use weir_wire::{self as wire, PolicyRules};

use crate::override_keys;
use crate::world::{Fault, ObjectKey, Policy, Workload, WorkloadKind};

/// Which pods a policy is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Those that these workloads select.
    Workloads(Vec<Workload>),
    /// Those with these labels.
    Labels(Selector),
}

/// What became of a policy.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// UID of the policy.
    pub uid: String,
    /// The generation that was looked at.
    pub generation: i64,
    /// Age decides the order on a pod.
    pub created: Option<Timestamp>,
    /// The file that it is in.
    pub file: Option<Arc<str>>,
    /// Why the newest generation cannot be enforced; empty if it can.
    pub faults: Vec<Fault>,
    /// What is to be enforced: of the newest generation, or of the last good one. None if there never was one.
    pub rules: Option<Arc<PolicyRules>>,
    /// The pods meant by the same generation.
    pub target: Option<Target>,
}

/// Compiles policies and keeps the results.
#[derive(Debug, Default)]
pub struct Compiler {
    compiled: BTreeMap<ObjectKey, Compiled>,
}

impl Compiler {
    /// Everything that was compiled.
    pub fn compiled(&self) -> &BTreeMap<ObjectKey, Compiled> {
        &self.compiled
    }

    /// Compiles what is new and forgets what is gone.
    pub fn update(&mut self, policies: &BTreeMap<ObjectKey, Policy>) {
        self.compiled.retain(|key, _| policies.contains_key(key));
        for (key, policy) in policies {
            let known = self.compiled.get(key).filter(|known| known.uid == policy.uid);
            if known.is_some_and(|known| known.generation == policy.generation && known.file == policy.file) {
                continue;
            }
            let last_good = known.map(|known| (known.rules.clone(), known.target.clone())).unwrap_or_default();
            let compiled = compile_policy(key, policy, last_good);
            self.compiled.insert(key.clone(), compiled);
        }
    }
}

fn compile_policy(key: &ObjectKey, policy: &Policy, last_good: (Option<Arc<PolicyRules>>, Option<Target>)) -> Compiled {
    let outcome = policy.spec.as_ref().map_err(Clone::clone).and_then(|spec| compile(key, &policy.uid, spec));
    let (faults, (rules, target)) = match outcome {
        Ok((rules, target)) => (Vec::new(), (Some(Arc::new(rules)), Some(target))),
        Err(faults) => (faults, last_good),
    };
    Compiled {
        uid: policy.uid.clone(),
        generation: policy.generation,
        created: policy.created,
        file: policy.file.clone(),
        faults,
        rules,
        target,
    }
}

/// The first 16 hex digits of the SHA-256 of a value's JSON.
pub fn revision_of(value: &impl Serialize) -> String {
    let json = serde_json::to_vec(value).expect("plain data always has a JSON form");
    let digest = Sha256::digest(&json);
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Compiles one policy.
///
/// # Errors
///
/// Every fault: numbers that the rules cannot hold, overrides of limits that do not exist or of keys that cannot be.
pub fn compile(key: &ObjectKey, uid: &str, spec: &RateLimitPolicySpec) -> Result<(PolicyRules, Target), Vec<Fault>> {
    let mut faults = Faults::default();
    let rules: Vec<wire::Rule> =
        spec.rules.iter().enumerate().map(|(i, r)| rule(r, &format!("spec.rules[{i}]"), &mut faults)).collect();
    let mode = match spec.mode {
        api::Mode::Enforce => wire::Mode::Enforce,
        api::Mode::Shadow => wire::Mode::Shadow,
        api::Mode::Disabled => wire::Mode::Disabled,
    };
    let target = target(key, spec);
    if target.is_none() {
        faults.add("spec".into(), "exactly one of targetRefs and selector must be set");
    }
    match target {
        Some(target) if faults.0.is_empty() => {
            let revision = revision_of(&(mode, &rules));
            let compiled = PolicyRules {
                uid: uid.to_owned(),
                namespace: key.namespace.clone(),
                name: key.name.clone(),
                revision,
                mode,
                deadline_millis: None,
                rules,
            };
            Ok((compiled, target))
        }
        _ => Err(faults.0),
    }
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, path: String, message: impl Into<String>) {
        self.0.push(Fault { path, message: message.into() });
    }

    /// A number that must fit and must not be zero where zero means nothing.
    fn number<T>(&mut self, path: String, value: i64, least: i64) -> T
    where
        T: TryFrom<i64> + Default,
    {
        match T::try_from(value) {
            Ok(number) if value >= least => number,
            _ => {
                self.add(path, format!("{value} is out of range: must be at least {least}"));
                T::default()
            }
        }
    }
}

fn target(key: &ObjectKey, spec: &RateLimitPolicySpec) -> Option<Target> {
    match (&spec.selector, spec.target_refs.as_slice()) {
        (Some(selector), []) if !selector.match_labels.is_empty() => {
            Some(Target::Labels(selector.match_labels.clone().into_iter().collect()))
        }
        (None, refs @ [_, ..]) => {
            let workload = |target: &api::TargetRef| Workload {
                kind: match target.kind {
                    api::TargetKind::Deployment => WorkloadKind::Deployment,
                    api::TargetKind::StatefulSet => WorkloadKind::StatefulSet,
                    api::TargetKind::DaemonSet => WorkloadKind::DaemonSet,
                    api::TargetKind::Service => WorkloadKind::Service,
                },
                key: ObjectKey::new(&key.namespace, &target.name),
            };
            Some(Target::Workloads(refs.iter().map(workload).collect()))
        }
        _ => None,
    }
}

fn rule(rule: &api::Rule, path: &str, faults: &mut Faults) -> wire::Rule {
    let matches = rule.matches.iter().map(match_entry).collect();
    if rule.action == api::Action::Bypass {
        return wire::Rule {
            name: rule.name.clone(),
            action: wire::Action::Bypass,
            matches,
            per: wire::Per::Request,
            key: Vec::new(),
            limits: Vec::new(),
            overrides: Vec::new(),
            cost: None,
            on_limit: None,
            max_keys: None,
        };
    }
    if rule.limits.is_empty() {
        faults.add(format!("{path}.limits"), "a rule that limits must have at least one limit");
    }
    override_keys::check(rule, |key, message| faults.add(format!("{path}.{key}"), message));
    let keyed = !rule.key.is_empty();
    wire::Rule {
        name: rule.name.clone(),
        action: wire::Action::Limit,
        matches,
        per: wire::Per::Request,
        key: rule.key.iter().enumerate().map(|(i, part)| key_part(part, &format!("{path}.key[{i}]"), faults)).collect(),
        limits: rule.limits.iter().enumerate().map(|(i, l)| limit(l, &format!("{path}.limits[{i}]"), faults)).collect(),
        overrides: (rule.overrides.iter().enumerate())
            .map(|(i, entry)| overridden(entry, &rule.limits, &format!("{path}.overrides[{i}]"), faults))
            .collect(),
        cost: None,
        on_limit: Some(on_limit(rule.on_limit.as_ref(), path, faults)),
        max_keys: keyed.then(|| faults.number(format!("{path}.maxKeys"), rule.max_keys.into(), 1)),
    }
}

fn match_entry(entry: &api::Match) -> wire::Match {
    wire::Match {
        methods: entry.methods.clone(),
        hosts: entry.hosts.clone(),
        paths: entry.paths.clone(),
        headers: (entry.headers.iter())
            .map(|header| wire::FieldMatch {
                name: header.name.clone(),
                value: Some(header.value.clone()),
                prefix: None,
            })
            .collect(),
        path_regexes: Vec::new(),
        query: Vec::new(),
        predicate: None,
    }
}

fn key_part(part: &api::KeyPart, path: &str, faults: &mut Faults) -> wire::KeyPart {
    match part {
        api::KeyPart::Header(name) => wire::KeyPart::Header(name.clone()),
        api::KeyPart::ClientIp(client) => wire::KeyPart::ClientIp {
            trusted_hops: faults.number(format!("{path}.clientIP.trustedHops"), client.trusted_hops.into(), 0),
            ipv6_prefix: faults.number(format!("{path}.clientIP.ipv6Prefix"), client.ipv6_prefix.into(), 1),
        },
    }
}

fn limit(limit: &api::Limit, path: &str, faults: &mut Faults) -> wire::Limit {
    numbers(&limit.name, limit.strategy, limit.requests, &limit.per, limit.burst, path, faults)
}

fn overridden(entry: &api::Override, limits: &[api::Limit], path: &str, faults: &mut Faults) -> wire::Override {
    let mut replaced = Vec::new();
    for (i, other) in entry.limits.iter().enumerate() {
        let path = format!("{path}.limits[{i}]");
        let Some(limit) = limits.iter().find(|limit| limit.name == other.name) else {
            faults.add(format!("{path}.name"), format!("the rule has no limit {:?}", other.name));
            continue;
        };
        replaced.push(numbers(&other.name, limit.strategy, other.requests, &other.per, other.burst, &path, faults));
    }
    wire::Override { keys: entry.keys.clone(), limits: replaced }
}

fn numbers(
    name: &str,
    strategy: api::Strategy,
    requests: i64,
    per: &api::Period,
    burst: Option<i64>,
    path: &str,
    faults: &mut Faults,
) -> wire::Limit {
    let requests: u64 = faults.number(format!("{path}.requests"), requests, 1);
    let burst: Option<u64> = burst.map(|burst| faults.number(format!("{path}.burst"), burst, 1));
    let (strategy, burst) = match strategy {
        api::Strategy::TokenBucket => (wire::Strategy::TokenBucket, Some(burst.unwrap_or(requests))),
        api::Strategy::Gcra => (wire::Strategy::Gcra, Some(burst.unwrap_or(1))),
        api::Strategy::FixedWindow => {
            if burst.is_some() {
                faults.add(format!("{path}.burst"), "burst does not go with strategy FixedWindow: leave it out");
            }
            (wire::Strategy::FixedWindow, None)
        }
    };
    let period_millis = u64::try_from(per.duration().as_millis()).expect("a period is at most a day");
    wire::Limit { name: name.to_owned(), strategy, requests, period_millis, burst, debt: None }
}

fn on_limit(on_limit: Option<&api::OnLimit>, path: &str, faults: &mut Faults) -> wire::OnLimit {
    let on_limit = on_limit.cloned().unwrap_or_default();
    // An enum with one value: the compiler complains here once there is a second.
    let api::OnLimitAction::Reject = on_limit.action;
    wire::OnLimit {
        status: faults.number(format!("{path}.onLimit.status"), on_limit.status.into(), 400),
        headers: match on_limit.headers {
            api::HeaderStyle::Ietf => wire::HeaderStyle::Ietf,
            api::HeaderStyle::Legacy => wire::HeaderStyle::Legacy,
            api::HeaderStyle::Both => wire::HeaderStyle::Both,
            api::HeaderStyle::None => wire::HeaderStyle::None,
        },
        max_wait_millis: None,
        body: None,
        content_type: None,
        on_message: None,
    }
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
