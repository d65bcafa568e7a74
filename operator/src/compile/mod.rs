//! Policies to rules: what a person wrote to what an agent enforces, with every default decided.
//!
//! Pure, and done once per generation: [`Compiler`] keeps what it compiled. What cannot be compiled keeps the last
//! good rules in force and says what is wrong, every fault by its path. The schema and the CEL rules of `weir-api` have
//! judged already what they can; here it is what would make an agent refuse a snapshot, other policies' rules included.

mod faults;
mod last_known_good;
mod limits;
mod matching;
mod override_keys;
mod rule;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::Selector;
use serde::Serialize;
use sha2::{Digest, Sha256};
use weir_api::{self as api, LastKnownGood, RateLimitPolicySpec};
use weir_wire::{self as wire, PolicyRules};

use self::faults::Faults;
pub use self::last_known_good::GoodGeneration;
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
    /// Which generation that is. None if there never was one.
    pub good: Option<GoodGeneration>,
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

    /// Compiles those of the dirty policies that are new and forgets those that are gone. `kept` tells what a policy's
    /// status keeps of its last good generation.
    pub fn update<'a>(
        &mut self,
        policies: &BTreeMap<ObjectKey, Policy>,
        dirty: &BTreeSet<ObjectKey>,
        kept: impl Fn(&ObjectKey) -> Option<&'a LastKnownGood>,
    ) {
        for key in dirty {
            let Some(policy) = policies.get(key) else {
                self.compiled.remove(key);
                continue;
            };
            let known = self.compiled.get(key).filter(|known| known.uid == policy.uid);
            let remembered = known.and_then(|known| known.good.as_ref()).map(GoodGeneration::generation);
            // Another operator may have seen a good generation that this one missed.
            let kept = kept(key).filter(|kept| remembered.is_none_or(|generation| generation < kept.generation));
            let is_done = known.is_some_and(|known| known.generation == policy.generation && known.file == policy.file);
            if is_done && (kept.is_none() || known.is_some_and(|known| known.faults.is_empty())) {
                continue;
            }
            let compiled = compile_policy(key, policy, known, kept);
            self.compiled.insert(key.clone(), compiled);
        }
    }
}

/// What becomes of a policy: what it asks for; else what its status keeps; else what is remembered of it.
fn compile_policy(
    key: &ObjectKey,
    policy: &Policy,
    known: Option<&Compiled>,
    kept: Option<&LastKnownGood>,
) -> Compiled {
    let mut compiled = Compiled {
        uid: policy.uid.clone(),
        generation: policy.generation,
        created: policy.created,
        file: policy.file.clone(),
        faults: Vec::new(),
        rules: None,
        target: None,
        good: None,
    };
    let asked = policy.spec.as_ref().map_err(Clone::clone);
    let asked = asked.and_then(|spec| Ok((compile(key, &policy.uid, spec)?, GoodGeneration::new(policy, spec))));
    let good = asked.or_else(|faults| {
        compiled.faults = faults;
        let kept = kept.map(|kept| last_known_good::restore(key, &policy.uid, kept)).transpose();
        kept.unwrap_or_else(|faults| {
            compiled.faults.extend(faults);
            None
        })
        .ok_or(())
    });
    if let Ok(((rules, target), good)) = good {
        (compiled.rules, compiled.target, compiled.good) = (Some(Arc::new(rules)), Some(target), Some(good));
    } else if let Some(known) = known {
        compiled.rules.clone_from(&known.rules);
        compiled.target.clone_from(&known.target);
        compiled.good.clone_from(&known.good);
    }
    compiled
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
/// Every fault: numbers that the rules cannot hold, expressions that do not parse, costs that no limit bears, logs that
/// take too much memory, overrides of limits that do not exist or of keys that cannot be.
pub fn compile(key: &ObjectKey, uid: &str, spec: &RateLimitPolicySpec) -> Result<(PolicyRules, Target), Vec<Fault>> {
    let mut faults = Faults::default();
    let rules: Vec<wire::Rule> =
        spec.rules.iter().enumerate().map(|(i, r)| rule::rule(r, &format!("spec.rules[{i}]"), &mut faults)).collect();
    let mode = match spec.mode {
        api::Mode::Enforce => wire::Mode::Enforce,
        api::Mode::Shadow => wire::Mode::Shadow,
        api::Mode::Disabled => wire::Mode::Disabled,
    };
    let target = target(key, spec);
    if target.is_none() {
        faults.add("spec", "exactly one of targetRefs and selector must be set");
    }
    let deadline_millis = spec.deadline.as_ref().map(api::Deadline::as_millis);
    let compiled = target.map(|target| {
        let revision = revision_of(&(mode, deadline_millis, &rules));
        let rules = PolicyRules {
            uid: uid.to_owned(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            revision,
            mode,
            deadline_millis,
            rules,
        };
        (rules, target)
    });
    faults.or(compiled)
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

#[cfg(test)]
mod tests;
