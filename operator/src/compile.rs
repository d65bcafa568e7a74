//! Compiles policies to rules: from what users write to what agents enforce, with every default filled in.
//!
//! Compilation is pure. [`Compiler`] keeps the result of each generation, until a store or the rounded number of pods
//! changes. If a policy does not compile, its last good rules stay in force, and every fault is reported with its path.
//! The schema and the CEL rules of `weir-api` have already checked what they can. This module finds every other fault
//! that would make an agent reject a snapshot, which also contains the rules of other policies.

mod ban;
mod domain;
mod faults;
mod last_known_good;
mod limits;
mod matching;
mod override_keys;
mod replaced;
mod rule;
mod shared;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
};

use jiff::Timestamp;
use kube::core::Selector;
use serde::Serialize;
use sha2::{Digest, Sha256};
use weir_api::{self as api, LastKnownGood, RateLimitPolicySpec};
use weir_wire::{self as wire, PolicyRules, log_bytes};

use self::{
    faults::Faults,
    last_known_good::Unusable,
    replaced::detached,
    rule::UsedStores,
    shared::{Sharing, rounded, stamp},
};
pub use self::{
    last_known_good::GoodGeneration,
    replaced::store_key,
    shared::{KnownStores, StoreSecrets, compile_store},
};
pub(crate) use self::{matching::takes_all, shared::only_waits_for_stores};
use crate::world::{DirtySet, Fault, ObjectKey, Policy, Workload, WorkloadKind, World};

/// A compiled policy: its rules, with the stores that they use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledPolicy {
    /// The rules in the types of the wire. Their revision also depends on the stores.
    pub wire: PolicyRules,
    /// Each store that a rule uses.
    pub stores: Vec<wire::Store>,
    /// The Secrets of these stores.
    pub secrets: Vec<StoreSecrets>,
    /// The room that the policy takes.
    pub size: PolicySize,
    /// The number of pods of this cluster for which the policy is compiled.
    pub pods: u32,
}

/// The room that a policy takes in a snapshot and in an agent. A plan compares it for each set of labels, so it is
/// computed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySize {
    /// The bytes of the rules as JSON, with the comma before the next policy.
    pub rules: usize,
    /// The bytes of each store as JSON, with the comma before the next store.
    pub stores: Vec<usize>,
    /// The bytes of the logs in an agent.
    pub logs: u64,
    /// The bytes of the regular expressions in an agent.
    pub expressions: u64,
}

impl CompiledPolicy {
    /// Sets the revision, and measures the size.
    fn new(mut wire: PolicyRules, used: UsedStores, expressions: u64, pods: u32) -> Self {
        let UsedStores { stores, secrets } = used;
        wire.revision = revision(&wire, &stores);
        let size = PolicySize {
            rules: json_length(&wire),
            stores: stores.iter().map(json_length).collect(),
            logs: log_bytes(&wire),
            expressions,
        };
        Self { wire, stores, secrets, size, pods }
    }

    /// Returns the policy for this number of pods, as if it were compiled with it. Old rules that stay in force need
    /// the present number, too. Otherwise, the shares of more pods exceed the limit.
    pub(crate) fn with_pods(self: &Arc<Self>, pods: u32) -> Arc<Self> {
        if self.pods == pods {
            return self.clone();
        }
        let Self { mut wire, stores, secrets, size, pods: before } = Self::clone(self);
        for shared in wire.rules.iter_mut().filter_map(|rule| rule.shared.as_mut()) {
            let clusters = shared.sharers / before;
            shared.sharers = clusters.saturating_mul(pods);
        }
        Arc::new(Self::new(wire, UsedStores { stores, secrets }, size.expressions, pods))
    }
}

/// Returns the number of bytes of a value as JSON, and of the comma before the next one.
fn json_length(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |json| json.len().saturating_add(1))
}

impl Deref for CompiledPolicy {
    type Target = PolicyRules;

    fn deref(&self) -> &PolicyRules {
        &self.wire
    }
}

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
    /// The creation time. The policies of a pod are ordered by it.
    pub created: Option<Timestamp>,
    /// The time at which the policy changed in its file.
    pub changed: Option<Timestamp>,
    /// The policy's file.
    pub file: Option<Arc<str>>,
    /// The faults because of which the newest generation cannot be enforced; empty if it can be.
    pub faults: Vec<Fault>,
    /// The policy to enforce: that of the newest generation, or of the last good one. `None` if there never was one.
    pub policy: Option<Arc<CompiledPolicy>>,
    /// The target of the generation that `policy` comes from.
    pub target: Option<Target>,
    /// The generation that `policy` comes from. If there is no `policy`, a generation that only an operator of another
    /// version can enforce. `None` if no generation ever compiled.
    pub good: Option<GoodGeneration>,
}

impl Compiled {
    /// Returns the last good generation if this operator cannot read or compile it. Agents that enforce it must keep
    /// it.
    pub fn unreadable(&self) -> Option<&GoodGeneration> {
        self.good.as_ref().filter(|_| self.policy.is_none())
    }

    /// Returns the work of compiling the policy. That of a policy with faults is not known, and can be large.
    fn work(&self) -> u64 {
        let size = self.policy.as_ref().filter(|_| self.faults.is_empty()).map(|policy| &policy.size);
        size.map_or(SLICE, |size| size.expressions.saturating_add(u64::try_from(size.rules).unwrap_or(u64::MAX)))
    }
}

/// Compiles policies and keeps the results.
#[derive(Debug, Default)]
pub struct Compiler {
    compiled: BTreeMap<ObjectKey, Compiled>,
    /// The number of pods for which the rules of scope Shared and Fleet of each policy are compiled.
    sharing_pods: BTreeMap<ObjectKey, u32>,
}

/// The work after which other tasks run while many policies are compiled, in bytes of rules and expressions. Ordinary
/// policies take some kilobytes.
const SLICE: u64 = 1024 * 1024;

/// The policies that are left to compile before the next plan.
#[derive(Debug)]
pub struct Uncompiled {
    left: BTreeSet<ObjectKey>,
    /// The policies whose stores changed.
    users: BTreeSet<ObjectKey>,
}

/// The input of a compilation, in addition to the policy.
#[derive(Clone, Copy)]
struct Context<'a> {
    world: &'a World,
    /// The number of pods that share the policy's limits.
    pods: u32,
    /// True if a store or the number of pods changed, so that the same generation is compiled again.
    recompile: bool,
}

impl Compiler {
    /// Returns all results.
    pub fn compiled(&self) -> &BTreeMap<ObjectKey, Compiled> {
        &self.compiled
    }

    /// Returns the policies to compile: new, changed and deleted ones among the dirty ones, and those that use a dirty
    /// store, which become dirty.
    pub fn uncompiled(&self, world: &World, dirty: &mut DirtySet) -> Uncompiled {
        let users = self.users(world, &dirty.stores);
        dirty.policies.extend(users.iter().cloned());
        Uncompiled { left: dirty.policies.clone(), users }
    }

    /// Compiles some of the policies, and removes deleted ones. `stored_good` returns the last good generation that a
    /// policy's status stores. Returns false once all are compiled. The expressions of one policy can take a large part of a
    /// second, and a user can create many such policies, so they are compiled one by one.
    pub fn compile_some<'a>(
        &mut self,
        world: &World,
        uncompiled: &mut Uncompiled,
        stored_good: impl Fn(&ObjectKey) -> Option<&'a LastKnownGood>,
    ) -> bool {
        let mut work = 0_u64;
        while work < SLICE
            && let Some(key) = uncompiled.left.pop_first()
        {
            self.compile(world, &key, uncompiled.users.contains(&key), &stored_good);
            work = work.saturating_add(self.compiled.get(&key).map_or(0, Compiled::work));
        }
        !uncompiled.left.is_empty()
    }

    /// Compiles all of the policies.
    #[cfg(test)]
    pub(crate) fn update<'a>(
        &mut self,
        world: &World,
        dirty: &mut DirtySet,
        stored_good: impl Fn(&ObjectKey) -> Option<&'a LastKnownGood>,
    ) {
        let mut uncompiled = self.uncompiled(world, dirty);
        while self.compile_some(world, &mut uncompiled, &stored_good) {}
    }

    /// Sets the number of pods for the rules of scope Shared and Fleet of each policy, if it has changed. `pods` returns the
    /// number of pods that a policy targets. Returns the changed policies.
    pub fn count_pods(
        &mut self,
        policies: &BTreeSet<ObjectKey>,
        pods: impl Fn(&ObjectKey) -> usize,
    ) -> BTreeSet<ObjectKey> {
        let mut changed = BTreeSet::new();
        for key in policies {
            let shares = |it: &Compiled| it.policy.as_ref().is_some_and(|policy| !policy.stores.is_empty());
            let before = self.sharing_pods.get(key).copied();
            // A pod can still have the earlier rules of a policy that no longer shares limits but has grown too large.
            if before.is_none() && !self.compiled.get(key).is_some_and(shares) {
                continue;
            }
            let now = rounded(pods(key), before);
            if before != Some(now) {
                self.sharing_pods.insert(key.clone(), now);
                if let Some(policy) = self.compiled.get_mut(key).and_then(|it| it.policy.as_mut()) {
                    *policy = policy.with_pods(now);
                }
                changed.insert(key.clone());
            }
        }
        changed
    }

    /// Returns the policies that name one of these stores, or use it. A last good generation that could not be read can
    /// name any store of its namespace.
    fn users(&self, world: &World, stores: &BTreeSet<ObjectKey>) -> BTreeSet<ObjectKey> {
        let mut users = BTreeSet::new();
        for store in stores {
            let names = |spec: &RateLimitPolicySpec| {
                spec.rules.iter().any(|it| it.shared.as_ref().is_some_and(|it| *it.store_ref.name == *store.name))
            };
            let uses = |it: &Compiled| {
                let policy = it.policy.as_ref();
                policy.is_some_and(|policy| policy.stores.iter().any(|it| store_key(&it.name).as_ref() == Some(store)))
            };
            let in_namespace = world.policies.range(ObjectKey::new(store.namespace.clone(), "")..);
            let in_namespace = in_namespace.take_while(|(key, _)| key.namespace == store.namespace);
            let of_store = in_namespace.filter(|(key, policy)| {
                let is_user = |it: &Compiled| uses(it) || it.unreadable().is_some();
                policy.spec.as_ref().is_ok_and(|spec| names(spec)) || self.compiled.get(*key).is_some_and(is_user)
            });
            users.extend(of_store.map(|(key, _)| key.clone()));
        }
        users
    }

    /// Compiles a policy if its generation has not been compiled. With `recompile`, compiles it in any case.
    fn compile<'a>(
        &mut self,
        world: &World,
        key: &ObjectKey,
        recompile: bool,
        stored_good: &impl Fn(&ObjectKey) -> Option<&'a LastKnownGood>,
    ) {
        let Some(policy) = world.policies.get(key) else {
            self.compiled.remove(key);
            self.sharing_pods.remove(key);
            return;
        };
        let previous = self.compiled.get(key).filter(|it| it.uid == policy.uid);
        let previous_good = previous.and_then(|previous| previous.good.as_ref());
        // Another operator may have received a newer good generation.
        let stored_good =
            stored_good(key).filter(|stored| previous_good.is_none_or(|good| good.generation() < stored.generation));
        let is_done = previous.is_some_and(|it| {
            (it.generation, it.changed, &it.file) == (policy.generation, policy.changed, &policy.file)
        });
        if !recompile && is_done && (stored_good.is_none() || previous.is_some_and(|it| it.faults.is_empty())) {
            return;
        }
        // With other stores or another number of pods, the previous good generation must be compiled again, too. An
        // unreadable one can be the policy's present generation.
        let is_unreadable = previous.is_some_and(|it| it.unreadable().is_some());
        let previous_good =
            previous_good.filter(|good| recompile && (is_unreadable || good.generation() != policy.generation));
        let stored_good = stored_good.cloned().or_else(|| previous_good.and_then(GoodGeneration::to_stored));
        let context = Context { world, pods: self.sharing_pods.get(key).copied().unwrap_or(1), recompile };
        let compiled = compile_policy(key, policy, previous, stored_good.as_ref(), context);
        self.compiled.insert(key.clone(), compiled);
    }
}

/// Compiles a policy. If that fails, compiles the generation in the status, or else the previous good one.
fn compile_policy(
    key: &ObjectKey,
    policy: &Policy,
    previous: Option<&Compiled>,
    stored_good: Option<&LastKnownGood>,
    context: Context<'_>,
) -> Compiled {
    let mut compiled = Compiled {
        uid: policy.uid.clone(),
        generation: policy.generation,
        created: policy.created,
        changed: policy.changed,
        file: policy.file.clone(),
        faults: Vec::new(),
        policy: None,
        target: None,
        good: None,
    };
    let sharing = |generation: i64| Sharing {
        policy: key,
        stamp: stamp(policy.created.or(policy.changed), generation.min(policy.generation)),
        pods: context.pods,
        stores: KnownStores::Known(&context.world.stores),
    };
    let mut has_ended = false;
    let newest = policy.spec.as_ref().map_err(Clone::clone);
    let newest = newest.and_then(|spec| {
        Ok((compile_with(&policy.uid, spec, sharing(policy.generation))?, GoodGeneration::new(policy, spec)))
    });
    let good = newest.or_else(|faults| {
        compiled.faults = faults;
        let restored = stored_good
            .map(|stored| last_known_good::restore(&policy.uid, stored, sharing(stored.generation)))
            .transpose();
        restored
            .unwrap_or_else(|unusable| {
                has_ended = matches!(unusable, Unusable::Stores(_));
                match unusable {
                    // The newest generation has the same faults.
                    Unusable::Stores(_) if stored_good.is_some_and(|it| it.generation == policy.generation) => {}
                    Unusable::Stores(faults) => compiled.faults.extend(faults),
                    Unusable::Unreadable(faults, good) => {
                        compiled.faults.extend(faults);
                        compiled.good = Some(good);
                    }
                }
                None
            })
            .ok_or(())
    });
    if let Ok(((compiled_policy, target), good)) = good {
        (compiled.policy, compiled.target, compiled.good) = (Some(Arc::new(compiled_policy)), Some(target), Some(good));
    } else if let Some(previous) = previous.filter(|it| it.policy.is_some() || (compiled.good.is_none() && !has_ended))
    {
        compiled.policy = previous.policy.as_ref().map(|policy| {
            let policy = policy.with_pods(context.pods);
            if context.recompile { detached(policy, context.world) } else { policy }
        });
        compiled.target.clone_from(&previous.target);
        compiled.good.clone_from(&previous.good);
    }
    compiled
}

/// Returns the revision of a policy. Fields that later versions added are hashed only if they are set, so an upgrade of
/// the operator changes no revision.
fn revision(policy: &PolicyRules, stores: &[wire::Store]) -> String {
    let PolicyRules { uid: _, namespace: _, name: _, revision: _, mode, domain, deadline_millis, on_deadline, rules } =
        policy;
    if let Some(domain) = domain {
        return revision_of(&(mode, domain, rules, stores));
    }
    match (on_deadline, stores) {
        (None, []) => revision_of(&(mode, deadline_millis, rules)),
        (None, stores) => revision_of(&(mode, deadline_millis, rules, stores)),
        (Some(on_deadline), stores) => revision_of(&(mode, deadline_millis, rules, stores, on_deadline)),
    }
}

/// Returns the first 16 hex digits of the SHA-256 of a value's JSON.
pub fn revision_of(value: &impl Serialize) -> String {
    let json = serde_json::to_vec(value).expect("plain data always serializes to JSON");
    let digest = Sha256::digest(&json);
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Compiles one policy without checking which stores exist.
///
/// # Errors
///
/// Every fault: numbers out of range, expressions that do not parse, costs that a limit can never admit, logs and
/// expressions that take too much memory, overrides of limits or keys that do not exist.
pub fn compile(key: &ObjectKey, uid: &str, spec: &RateLimitPolicySpec) -> Result<(CompiledPolicy, Target), Vec<Fault>> {
    compile_with(uid, spec, Sharing { policy: key, stamp: 0, pods: 1, stores: KnownStores::Unknown })
}

fn compile_with(
    uid: &str,
    spec: &RateLimitPolicySpec,
    sharing: Sharing<'_>,
) -> Result<(CompiledPolicy, Target), Vec<Fault>> {
    let key = sharing.policy;
    let (mut faults, mut used) = (Faults::default(), UsedStores::default());
    let rules: Vec<wire::Rule> = (spec.rules.iter().enumerate())
        .map(|(i, rule)| rule::rule(rule, sharing, &format!("spec.rules[{i}]"), &mut used, &mut faults))
        .collect();
    domain::check(spec, &mut faults);
    let mode = rule::mode(spec.mode);
    let target = target(key, spec);
    if target.is_none() {
        faults.add("spec", "exactly one of targetRefs and selector must be set");
    }
    let deadline_millis = spec.deadline.as_ref().map(api::Deadline::as_millis);
    let on_deadline = spec.on_deadline.as_ref().map(|form| on_deadline(spec, form, &mut faults));
    let expression_bytes = faults.expression_bytes();
    let compiled = target.map(|target| {
        let wire = PolicyRules {
            uid: uid.to_owned(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            revision: String::new(),
            mode,
            domain: spec.domain.clone(),
            deadline_millis,
            on_deadline,
            rules,
        };
        (CompiledPolicy::new(wire, used, expression_bytes, sharing.pods), target)
    });
    faults.or(compiled)
}

fn on_deadline(spec: &RateLimitPolicySpec, form: &api::OnDeadline, faults: &mut Faults) -> wire::OnDeadline {
    if spec.deadline.is_none() {
        faults.add("spec.onDeadline", "is valid only with deadline: add deadline, or remove it");
    }
    wire::OnDeadline {
        status: faults.number("spec.onDeadline.status".to_owned(), form.status.unwrap_or(504).into(), 400),
        body: form.body.clone(),
        content_type: form.content_type.clone(),
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
                key: ObjectKey::new(key.namespace.clone(), &*target.name),
            };
            Some(Target::Workloads(refs.iter().map(workload).collect()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod shared_tests;
