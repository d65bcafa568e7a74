//! Plans the content of every agent and the targets of every policy, from the world and the compiled policies.
//!
//! Policies select by a pod's namespace and labels only, so pods with equal ones are planned as one *cohort*. The pods
//! of a Deployment are one cohort, and a change of a policy is planned once for all of them. An update computes only
//! the changed parts, and its result equals a full computation, byte for byte.

mod bypasses;
mod content;
mod selecting;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use weir_wire::PolicyRules;

use self::{
    bypasses::bypasses,
    content::{Contents, Unreadable},
    selecting::{in_order, selects},
};
pub use self::{
    content::{Content, CountedRule},
    selecting::content_for_pod,
};
use crate::{
    compile::{Compiled, Target},
    pod_ports::Bypass,
    world::{DirtySet, Membership, ObjectKey, Workload, WorkloadKind, World},
};

/// The plan: the content that every agent should enforce.
#[derive(Debug, Default)]
pub struct Plan {
    cohorts: BTreeMap<CohortId, Cohort>,
    by_membership: HashMap<(String, Arc<Membership>), CohortId>,
    /// The cohorts by namespace. Agents outside of a cluster are under the empty one, which policies of all namespaces
    /// target.
    by_namespace: BTreeMap<String, BTreeSet<CohortId>>,
    pods: HashMap<ObjectKey, CohortId>,
    targets: BTreeMap<ObjectKey, Targets>,
    /// The policies that name a workload.
    naming: BTreeMap<Workload, BTreeSet<ObjectKey>>,
    /// The UIDs of the policies whose last good rules this operator cannot read or compile.
    unreadable: BTreeMap<ObjectKey, String>,
    contents: Contents,
    newest: CohortId,
}

type CohortId = u64;

/// The result of an update.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Pods that are new, changed or deleted, or whose content changed, or for which policies no longer fit or fit
    /// again.
    pub pods: BTreeSet<ObjectKey>,
    /// Policies that are new, changed or deleted, or whose targets changed.
    pub policies: BTreeSet<ObjectKey>,
}

/// What an update has changed so far.
#[derive(Debug, Default)]
struct Touched {
    /// The new cohorts, whose policies are not known yet.
    fresh: BTreeSet<CohortId>,
    /// The cohorts whose content can have changed.
    stale: BTreeSet<CohortId>,
    /// The policies whose targets changed.
    policies: BTreeSet<ObjectKey>,
    /// The policies whose bypasses may have changed.
    bypasses: BTreeSet<ObjectKey>,
}

/// A cohort: pods that no policy can distinguish.
#[derive(Debug)]
pub struct Cohort {
    namespace: String,
    membership: Arc<Membership>,
    pods: BTreeSet<ObjectKey>,
    /// The policies that target the cohort, including those without rules in force.
    pub policies: BTreeSet<ObjectKey>,
    /// The policies whose newest rules do not fit into the snapshot.
    pub left_out: BTreeSet<ObjectKey>,
    /// The content that each agent of the cohort should enforce.
    pub content: Arc<Content>,
}

/// The pods that one policy targets.
#[derive(Debug, Default)]
pub struct Targets {
    cohorts: BTreeSet<CohortId>,
    /// The number of pods, with or without an agent.
    pub pods: usize,
    /// The workloads that the policy names and that do not exist.
    pub missing: Vec<Workload>,
    /// The Services that the policy names and that have no selector.
    pub podless: Vec<Workload>,
    /// A counter that grows with each change of the policy, its pods or the workloads that it names.
    pub changes: u64,
    /// The ways in which requests can bypass the agents or the limits.
    pub bypasses: Vec<Bypass>,
    names: Vec<Workload>,
}

impl Plan {
    /// Returns the cohort of a pod.
    pub fn cohort(&self, pod: &ObjectKey) -> Option<&Cohort> {
        self.cohorts.get(self.pods.get(pod)?)
    }

    /// Returns the content of the pods of this namespace with this membership, if there are any.
    pub fn content_of(&self, namespace: &str, membership: &Arc<Membership>) -> Option<Arc<Content>> {
        let id = self.by_membership.get(&(namespace.to_owned(), membership.clone()))?;
        Some(self.cohorts.get(id)?.content.clone())
    }

    /// Returns the targets of a policy.
    pub fn targets(&self, policy: &ObjectKey) -> Option<&Targets> {
        self.targets.get(policy)
    }

    /// Returns the number of pods of a policy whose snapshots have no room for its newest rules.
    pub fn left_out(&self, policy: &ObjectKey) -> usize {
        let cohorts = self.targets.get(policy).into_iter().flat_map(|targets| &targets.cohorts);
        let cohorts = cohorts.filter_map(|id| self.cohorts.get(id));
        cohorts.filter(|cohort| cohort.left_out.contains(policy)).map(|cohort| cohort.pods.len()).sum()
    }

    /// Returns the number of pods that any policy targets.
    pub fn targeted(&self) -> usize {
        self.cohorts.values().filter(|cohort| !cohort.policies.is_empty()).map(|cohort| cohort.pods.len()).sum()
    }

    /// Updates the plan for the dirty parts of the world.
    pub fn update(&mut self, world: &World, compiled: &BTreeMap<ObjectKey, Compiled>, dirty: &DirtySet) -> Planned {
        let was_standalone = self.is_standalone();
        let mut pods = dirty.pods.clone();
        let mut touched =
            Touched { bypasses: self.policies_in_namespaces_of(dirty.workloads.iter()), ..Touched::default() };
        for pod in &dirty.pods {
            self.place(world, pod, &mut touched);
        }
        let mut policies = dirty.policies.clone();
        if was_standalone != self.is_standalone() {
            // In standalone mode there are no workloads, so no workload counts as missing.
            policies.extend(compiled.keys().cloned());
        }
        let naming = dirty.workloads.iter().filter_map(|workload| self.naming.get(workload));
        policies.extend(naming.flatten().cloned());
        for policy in &policies {
            self.target(world, policy, compiled.get(policy), &mut touched);
        }
        for id in std::mem::take(&mut touched.fresh) {
            self.find_policies(world, id, compiled, &policies, &mut touched);
            touched.stale.insert(id);
        }
        for id in touched.stale {
            let Some(cohort) = self.cohorts.get_mut(&id) else { continue };
            touched.bypasses.extend(cohort.policies.iter().cloned());
            let on_pod = cohort.policies.iter().filter_map(|key| compiled.get_key_value(key));
            let unreadable = unreadable(&self.unreadable, &cohort.namespace);
            let content = self.contents.of(&in_order(on_pod), unreadable, &cohort.content.policies);
            let left_out = left_out(&cohort.policies, compiled, &content);
            for policy in cohort.left_out.symmetric_difference(&left_out) {
                if let Some(targets) = self.targets.get_mut(policy) {
                    targets.changes += 1;
                    touched.policies.insert(policy.clone());
                }
            }
            // A policy that does not fit changes nothing in the content, but no pod enforces it.
            if left_out != cohort.left_out || content.revision != cohort.content.revision {
                pods.extend(cohort.pods.iter().cloned());
            }
            cohort.left_out = left_out;
            cohort.content = content;
        }
        for policy in touched.bypasses {
            let Some(targets) = self.targets.get(&policy) else { continue };
            let found = bypasses(world, &policy, targets.cohorts.iter().map(|id| &self.cohorts[id]));
            if found != targets.bypasses
                && let Some(targets) = self.targets.get_mut(&policy)
            {
                targets.bypasses = found;
                targets.changes += 1;
                touched.policies.insert(policy);
            }
        }
        policies.append(&mut touched.policies);
        Planned { pods, policies }
    }

    /// Returns the policies in the namespaces of these Services.
    fn policies_in_namespaces_of<'a>(&self, workloads: impl Iterator<Item = &'a Workload>) -> BTreeSet<ObjectKey> {
        let services = workloads.filter(|workload| workload.kind == WorkloadKind::Service);
        let namespaces: BTreeSet<&str> = services.map(|service| &*service.key.namespace).collect();
        let of = |namespace| {
            let from = self.targets.range(ObjectKey::new(namespace, "")..);
            from.map(|(policy, _)| policy).take_while(move |policy| &*policy.namespace == namespace)
        };
        namespaces.into_iter().flat_map(of).cloned().collect()
    }

    fn is_standalone(&self) -> bool {
        self.by_namespace.contains_key(OUTSIDE)
    }

    /// Moves a pod into its current cohort.
    fn place(&mut self, world: &World, pod: &ObjectKey, touched: &mut Touched) {
        let membership = world.pods.get(pod).map(|found| found.membership.clone());
        let now = membership.map(|membership| self.cohort_of(&pod.namespace, membership, touched));
        let before = self.pods.get(pod).copied();
        if before != now {
            if let Some(id) = before {
                self.pods.remove(pod);
                self.leave(id, pod, touched);
            }
            if let Some(id) = now {
                self.pods.insert(pod.clone(), id);
                let cohort = self.cohorts.get_mut(&id).expect("the cohort was found or created above");
                cohort.pods.insert(pod.clone());
                count(&mut self.targets, &cohort.policies, 1, touched);
            }
        } else if let Some(cohort) = now.and_then(|id| self.cohorts.get(&id)) {
            count(&mut self.targets, &cohort.policies, 0, touched);
        }
    }

    fn leave(&mut self, id: CohortId, pod: &ObjectKey, touched: &mut Touched) {
        let cohort = self.cohorts.get_mut(&id).expect("a pod's cohort exists");
        cohort.pods.remove(pod);
        count(&mut self.targets, &cohort.policies, -1, touched);
        if !cohort.pods.is_empty() {
            return;
        }
        let Some(Cohort { namespace, membership, policies, .. }) = self.cohorts.remove(&id) else { return };
        for policy in policies {
            if let Some(targets) = self.targets.get_mut(&policy) {
                targets.cohorts.remove(&id);
            }
            touched.bypasses.insert(policy);
        }
        if let Some(ids) = self.by_namespace.get_mut(&namespace) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_namespace.remove(&namespace);
            }
        }
        self.by_membership.remove(&(namespace, membership));
    }

    fn cohort_of(&mut self, namespace: &str, membership: Arc<Membership>, touched: &mut Touched) -> CohortId {
        let namespace = if matches!(*membership, Membership::Pod { .. }) { namespace } else { OUTSIDE };
        let key = (namespace.to_owned(), membership);
        if let Some(id) = self.by_membership.get(&key) {
            return *id;
        }
        self.newest += 1;
        let id = self.newest;
        let cohort = Cohort {
            namespace: key.0.clone(),
            membership: key.1.clone(),
            pods: BTreeSet::new(),
            policies: BTreeSet::new(),
            left_out: BTreeSet::new(),
            content: self.contents.of(&[], Unreadable::new(), &[]),
        };
        self.cohorts.insert(id, cohort);
        self.by_namespace.entry(key.0.clone()).or_default().insert(id);
        self.by_membership.insert(key, id);
        touched.fresh.insert(id);
        id
    }

    /// Computes a policy's targets again. Every cohort that it targeted before or targets now becomes stale.
    fn target(&mut self, world: &World, policy: &ObjectKey, compiled: Option<&Compiled>, touched: &mut Touched) {
        let before = self.targets.remove(policy).unwrap_or_default();
        for id in &before.cohorts {
            self.cohorts.get_mut(id).expect("targets are existing cohorts").policies.remove(policy);
        }
        for workload in &before.names {
            if let Some(naming) = self.naming.get_mut(workload) {
                naming.remove(policy);
                if naming.is_empty() {
                    self.naming.remove(workload);
                }
            }
        }
        touched.stale.extend(&before.cohorts);
        let unreadable =
            compiled.filter(|compiled| compiled.unreadable().is_some()).map(|compiled| compiled.uid.clone());
        let in_reach =
            [&*policy.namespace, OUTSIDE].into_iter().filter_map(|name| self.by_namespace.get(name)).flatten();
        if self.unreadable.get(policy) != unreadable.as_ref() {
            touched.stale.extend(in_reach.clone());
            match unreadable {
                Some(uid) => self.unreadable.insert(policy.clone(), uid),
                None => self.unreadable.remove(policy),
            };
        }
        let Some(compiled) = compiled else { return };

        let names = match &compiled.target {
            Some(Target::Workloads(names)) => names.clone(),
            _ => Vec::new(),
        };
        for workload in &names {
            self.naming.entry(workload.clone()).or_default().insert(policy.clone());
        }
        let is_missing = |workload: &&Workload| !world.workloads.contains_key(*workload);
        // Standalone agents have no workloads, so no workload counts as missing.
        let missing =
            if self.is_standalone() { Vec::new() } else { names.iter().filter(is_missing).cloned().collect() };
        let is_podless = |workload: &&Workload| {
            workload.kind == WorkloadKind::Service && world.workloads.get(*workload).is_some_and(Option::is_none)
        };
        let podless = names.iter().filter(is_podless).cloned().collect();
        let mut targets = Targets { missing, podless, names, changes: before.changes + 1, ..Targets::default() };
        for id in in_reach {
            let cohort = self.cohorts.get_mut(id).expect("the index contains existing cohorts");
            if targets_cohort(world, policy, compiled, cohort) {
                cohort.policies.insert(policy.clone());
                targets.pods += cohort.pods.len();
                targets.cohorts.insert(*id);
            }
        }
        touched.stale.extend(&targets.cohorts);
        self.targets.insert(policy.clone(), targets);
    }

    /// Finds the policies of a new cohort, except those that are computed in any case.
    fn find_policies(
        &mut self,
        world: &World,
        id: CohortId,
        compiled: &BTreeMap<ObjectKey, Compiled>,
        done: &BTreeSet<ObjectKey>,
        touched: &mut Touched,
    ) {
        let Some(cohort) = self.cohorts.get_mut(&id) else { return };
        let everywhere = cohort.namespace == OUTSIDE;
        let from = if everywhere {
            compiled.range::<ObjectKey, _>(..)
        } else {
            compiled.range(ObjectKey::new(&*cohort.namespace, "")..)
        };
        let candidates = from.take_while(|(policy, _)| everywhere || *policy.namespace == *cohort.namespace);
        for (policy, compiled) in candidates.filter(|(policy, _)| !done.contains(*policy)) {
            if targets_cohort(world, policy, compiled, cohort) {
                cohort.policies.insert(policy.clone());
                let targets = self.targets.entry(policy.clone()).or_default();
                targets.cohorts.insert(id);
                targets.pods += cohort.pods.len();
                targets.changes += 1;
                touched.policies.insert(policy.clone());
            }
        }
    }
}

/// The namespace of agents outside of a cluster: no real namespace has this name.
const OUTSIDE: &str = "";

fn targets_cohort(world: &World, policy: &ObjectKey, compiled: &Compiled, cohort: &Cohort) -> bool {
    selects(&world.workloads, &policy.namespace, compiled, &cohort.namespace, &cohort.membership)
}

/// Returns those of these policies that agents of this namespace can have in force.
fn unreadable(policies: &BTreeMap<ObjectKey, String>, namespace: &str) -> Unreadable {
    let in_reach = policies.iter().filter(|(policy, _)| namespace == OUTSIDE || *policy.namespace == *namespace);
    in_reach.map(|(policy, uid)| (uid.clone(), policy.clone())).collect()
}

/// Returns the policies of a cohort whose newest rules are not in its content.
fn left_out(
    policies: &BTreeSet<ObjectKey>,
    compiled: &BTreeMap<ObjectKey, Compiled>,
    content: &Content,
) -> BTreeSet<ObjectKey> {
    let rules = policies.iter().filter_map(|key| Some((key, compiled.get(key)?.policy.as_ref()?)));
    let fits: HashMap<&str, &str> = content.policies.iter().map(|it| (&*it.uid, &*it.revision)).collect();
    let is_out = |rules: &PolicyRules| fits.get(&*rules.uid) != Some(&&*rules.revision);
    rules.filter(|(_, rules)| is_out(rules)).map(|(key, _)| key.clone()).collect()
}

/// Counts a pod that was added to these policies, removed from them, or changed.
fn count(
    targets: &mut BTreeMap<ObjectKey, Targets>,
    policies: &BTreeSet<ObjectKey>,
    change: isize,
    touched: &mut Touched,
) {
    for policy in policies {
        let targets = targets.get_mut(policy).expect("a policy of a cohort has targets");
        targets.pods = targets.pods.saturating_add_signed(change);
        targets.changes += 1;
        if !touched.policies.contains(policy) {
            touched.policies.insert(policy.clone());
        }
    }
}

#[cfg(test)]
mod tests;
