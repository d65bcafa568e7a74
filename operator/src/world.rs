//! What the operator knows of the world: policies, pods and the workloads that policies name. Plain data.
//!
//! Sources turn what they see into [`Change`]s; only the engine applies them. Nothing here asks, waits or decides.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::Selector;
use weir_api::{RateLimitPolicySpec, RateLimitPolicyStatus};

use crate::pod_ports::{PodPorts, Service};

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// `namespace/name`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Something wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where: `spec.rules[0].limits[0].requests`.
    pub path: String,
    /// What is wrong and how to fix it.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

/// A policy as its source shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Counters belong to it.
    pub uid: String,
    /// Grows with each change of the spec.
    pub generation: i64,
    /// Older policies come first on a pod.
    pub created: Option<Timestamp>,
    /// What it asks for, or why that cannot be read.
    pub spec: Result<Arc<RateLimitPolicySpec>, Vec<Fault>>,
    /// The file that it is in; none in a cluster.
    pub file: Option<Arc<str>>,
}

/// A pod that policies may target, or an agent outside of any cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Tells a pod from its successor of the same name.
    pub uid: String,
    /// Which policies may target it. Pods of one template share it.
    pub membership: Arc<Membership>,
    /// Where its agent listens.
    pub agent: Agent,
}

/// What decides whether a policy targets a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    /// A pod of a cluster: policies of its namespace that select these labels. Its pod_ports select nothing, and are the same in
    /// pods of one template.
    Pod(BTreeMap<String, String>, PodPorts),
    /// A standalone agent with labels: policies of any namespace whose selector matches them.
    Labelled(BTreeMap<String, String>),
    /// A standalone agent without labels: every policy.
    Everything,
}

/// Where a pod's agent listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Agent {
    /// The pod does not carry one: why, and how to fix it.
    Absent(Cow<'static, str>),
    /// It carries one, but has no address yet.
    Pending,
    /// The base URL of the control API, without a slash at its end.
    At(Arc<str>),
}

/// A workload that a policy can name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    /// What it is.
    pub kind: WorkloadKind,
    /// Namespace and name.
    pub key: ObjectKey,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.key.name)
    }
}

/// The kinds that a `targetRef` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadKind {
    /// `apps/v1` Deployment.
    Deployment,
    /// `apps/v1` StatefulSet.
    StatefulSet,
    /// `apps/v1` DaemonSet.
    DaemonSet,
    /// `v1` Service.
    Service,
}

/// All that the operator knows.
#[derive(Debug, Default)]
pub struct World {
    /// Every policy.
    pub policies: BTreeMap<ObjectKey, Policy>,
    /// Every pod that runs or will: those that ended or are being deleted are not in here.
    pub pods: BTreeMap<ObjectKey, Pod>,
    /// The pods that each workload selects; `None` for one that selects none.
    pub workloads: BTreeMap<Workload, Option<Selector>>,
    /// What each Service leads to; which pods, is among the workloads.
    pub services: BTreeMap<ObjectKey, Service>,
    /// Every membership that a pod has, once.
    memberships: HashSet<Arc<Membership>>,
}

/// What changed since somebody last looked.
#[derive(Debug, Default)]
pub struct DirtySet {
    /// Policies that came, changed or went.
    pub policies: BTreeSet<ObjectKey>,
    /// Pods that did.
    pub pods: BTreeSet<ObjectKey>,
    /// Workloads that did.
    pub workloads: BTreeSet<Workload>,
}

/// One thing that is different now. `None`: it is gone.
#[derive(Debug)]
pub enum Change {
    /// A policy, and what its source shows beside it, which is never a reason to plan again.
    Policy(ObjectKey, Option<(Policy, StoredStatus)>),
    /// A pod.
    Pod(ObjectKey, Option<Pod>),
    /// A workload that is no Service.
    Workload(Workload, Option<Option<Selector>>),
    /// A Service: the pods that it selects, and what it leads to.
    Service(ObjectKey, Option<(Option<Selector>, Service)>),
}

/// What a source shows beside a policy.
#[derive(Clone, Debug, Default)]
pub struct StoredStatus {
    /// The policy's status.
    pub status: Option<Box<RateLimitPolicyStatus>>,
    /// The version of the whole object, if the source has versions.
    pub version: Option<String>,
}

/// What a source sends.
#[derive(Debug, Default)]
pub struct Update {
    /// In order.
    pub changes: Vec<Change>,
    /// Everything that existed when the source started has been sent. Nothing may be pushed before: a pod whose
    /// policies are not listed yet would lose its limits.
    pub complete: bool,
}

impl World {
    /// Applies a change, and notes what it dirty; false if it changed nothing.
    pub fn apply(&mut self, change: Change, dirty: &mut DirtySet) -> bool {
        match change {
            Change::Policy(key, value) => {
                put(&mut self.policies, key, value.map(|(policy, _)| policy), &mut dirty.policies)
            }
            Change::Pod(key, value) => {
                let value = value.map(|pod| Pod { membership: self.share(pod.membership), ..pod });
                put(&mut self.pods, key, value, &mut dirty.pods)
            }
            Change::Workload(key, value) => put(&mut self.workloads, key, value, &mut dirty.workloads),
            Change::Service(key, value) => {
                let (selector, service) = value.unzip();
                let workload = Workload { kind: WorkloadKind::Service, key: key.clone() };
                let is_new = put(&mut self.services, key, service, &mut BTreeSet::new());
                if is_new {
                    dirty.workloads.insert(workload.clone());
                }
                put(&mut self.workloads, workload, selector, &mut dirty.workloads) || is_new
            }
        }
    }

    /// The labels of thousands of pods are the same few hundred.
    fn share(&mut self, membership: Arc<Membership>) -> Arc<Membership> {
        if let Some(shared) = self.memberships.get(&membership) {
            return shared.clone();
        }
        // Those that no pod has any more go when the table would have to grow.
        if self.memberships.len() == self.memberships.capacity() {
            self.memberships.retain(|membership| Arc::strong_count(membership) > 1);
        }
        self.memberships.insert(membership.clone());
        membership
    }
}

fn put<K: Ord + Clone, V: PartialEq>(
    map: &mut BTreeMap<K, V>,
    key: K,
    value: Option<V>,
    dirty: &mut BTreeSet<K>,
) -> bool {
    let changed = match value {
        Some(value) if map.get(&key) == Some(&value) => false,
        Some(value) => {
            map.insert(key.clone(), value);
            true
        }
        None => map.remove(&key).is_some(),
    };
    if changed {
        dirty.insert(key);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_alone_changes_nothing() {
        let key = ObjectKey::new("shop", "checkout");
        let change = |generation, revision: &str| {
            let policy = Policy {
                uid: "1".to_owned(),
                generation,
                created: None,
                spec: Err(vec![Fault { path: String::new(), message: "unreadable".to_owned() }]),
                file: None,
            };
            let revision = Some(revision.to_owned());
            let status = RateLimitPolicyStatus { revision, ..RateLimitPolicyStatus::default() };
            let stored = StoredStatus { status: Some(Box::new(status)), version: Some(generation.to_string()) };
            Change::Policy(key.clone(), Some((policy, stored)))
        };
        let (mut world, mut dirty) = (World::default(), DirtySet::default());
        assert!(world.apply(change(1, "a"), &mut dirty));
        assert!(dirty.policies.contains(&key));
        let mut dirty = DirtySet::default();
        assert!(!world.apply(change(1, "b"), &mut dirty));
        assert!(dirty.policies.is_empty());
        assert!(world.apply(change(2, "b"), &mut dirty));
    }

    #[test]
    fn pods_of_one_template_share_their_labels() {
        let (mut world, mut dirty) = (World::default(), DirtySet::default());
        let mut add = |name: &str, app: &str| {
            let membership =
                Membership::Pod(BTreeMap::from([("app".to_owned(), app.to_owned())]), PodPorts::default()).into();
            let pod = Pod { uid: name.to_owned(), membership, agent: Agent::Pending };
            world.apply(Change::Pod(ObjectKey::new("shop", name), Some(pod)), &mut dirty);
            world.pods[&ObjectKey::new("shop", name)].membership.clone()
        };
        let (a, b, c) = (add("a", "web"), add("b", "web"), add("c", "db"));
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &c));
        // A pod whose labels change takes others' along, and what nobody has does not stay.
        for number in 0..1000 {
            add("a", &number.to_string());
        }
        assert!(world.memberships.len() < 500, "{}", world.memberships.len());
    }
}
