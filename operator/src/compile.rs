//! Compiles policies to rules: from what users write to what agents enforce, with every default filled in.
//!
//! Pure, and done once per generation: [`Compiler`] keeps the results. If a policy does not compile, its last good
//! rules stay in force, and every fault is reported with its path. The schema and the CEL rules of `weir-api` have
//! checked what they can. This module finds everything else that would make an agent refuse a snapshot, and with it
//! the rules of other policies.

mod faults;
mod last_known_good;
mod limits;
mod matching;
mod override_keys;
mod rule;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::core::Selector;
use serde::Serialize;
use sha2::{Digest, Sha256};
use weir_api::{self as api, LastKnownGood, RateLimitPolicySpec};
use weir_wire::{self as wire, PolicyRules};

use self::faults::Faults;
use crate::world::{Fault, ObjectKey, Policy, Workload, WorkloadKind};

pub use self::last_known_good::GoodGeneration;
pub(crate) use self::matching::takes_all;

/// The pods that a policy targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Pods that these workloads select.
    Workloads(Vec<Workload>),
    /// Pods with these labels.
    Labels(Selector),
}

/// The result of compiling a policy.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// UID of the policy.
    pub uid: String,
    /// The compiled generation.
    pub generation: i64,
    /// Policies on a pod are ordered by age.
    pub created: Option<Timestamp>,
    /// The policy's file.
    pub file: Option<Arc<str>>,
    /// Why the newest generation cannot be enforced; empty if it can.
    pub faults: Vec<Fault>,
    /// The rules to enforce: those of the newest generation, or of the last good one. `None` if there never was one.
    pub rules: Option<Arc<PolicyRules>>,
    /// The target of the same generation.
    pub target: Option<Target>,
    /// That generation. `None` if there never was one.
    pub good: Option<GoodGeneration>,
}

/// Compiles policies and keeps the results.
#[derive(Debug, Default)]
pub struct Compiler {
    compiled: BTreeMap<ObjectKey, Compiled>,
}

impl Compiler {
    /// All results.
    pub fn compiled(&self) -> &BTreeMap<ObjectKey, Compiled> {
        &self.compiled
    }

    /// Compiles new and changed policies among the dirty ones and removes deleted ones. `kept` returns the last good
    /// generation that a policy's status stores.
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
            // Another operator may have seen a newer good generation.
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

/// Compiles a policy. If that fails, takes the generation of the status, or else the remembered one.
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
/// Every fault: numbers out of range, expressions that do not parse, costs that a limit can never admit, logs that
/// take too much memory, overrides of limits or keys that do not exist.
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
