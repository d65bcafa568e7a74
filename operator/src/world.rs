//! What the operator knows of the world: policies, pods and the workloads that policies name. Plain data.
//!
//! Sources turn what they see into [`Change`]s; only the engine applies them. Nothing here does I/O, waits or
//! decides.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::Arc,
};

use jiff::Timestamp;
use kube::core::Selector;
use weir_api::{RateLimitPolicySpec, RateLimitPolicyStatus, RateLimitStoreSpec, RateLimitStoreStatus};

use crate::pod_ports::{PodPorts, Service};

/// Namespace and name of an object. Copies share the text: about ten structures have a copy for each pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// `namespace/name`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A fault of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The path, such as `spec.rules[0].limits[0].requests`.
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
    /// Identifies the policy; the agents' counters belong to it.
    pub uid: String,
    /// Grows with each change of the spec.
    pub generation: i64,
    /// Older policies come first on a pod.
    pub created: Option<Timestamp>,
    /// The spec, or why it cannot be read.
    pub spec: Result<Arc<RateLimitPolicySpec>, Vec<Fault>>,
    /// The policy's file; `None` in a cluster.
    pub file: Option<Arc<str>>,
}

/// A store as its source shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// Identifies the store; empty for one in a file.
    pub uid: String,
    /// Grows with each change of the spec.
    pub generation: i64,
    /// The spec, or why it cannot be read.
    pub spec: Result<Arc<RateLimitStoreSpec>, Vec<Fault>>,
}

/// A pod that policies may target, or an agent outside of any cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Distinguishes a pod from a later one of the same name.
    pub uid: String,
    /// What decides which policies target it. Pods of one template share it.
    pub membership: Arc<Membership>,
    /// The state of its agent.
    pub agent: Agent,
    /// The Secrets of stores that its agent can read, as the annotation `weir.dev/store-secrets` lists them.
    pub store_secrets: Option<Arc<str>>,
}

/// What decides whether a policy targets a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    /// A pod of a cluster. Policies of its namespace can select these labels. Its ports do not matter for that, and
    /// are the same for all pods of a template.
    Pod(BTreeMap<String, String>, PodPorts),
    /// A standalone agent with labels. Policies of any namespace can select them.
    Labelled(BTreeMap<String, String>),
    /// A standalone agent without labels. Every policy targets it.
    Everything,
}

/// The state of a pod's agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Agent {
    /// The pod has no agent: why, and how to fix it.
    Absent(Cow<'static, str>),
    /// The pod has an agent, but no address yet.
    Pending,
    /// The base URL of the control API, without a trailing slash.
    At(Arc<str>),
}

/// A workload that a policy can name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    /// Its kind.
    pub kind: WorkloadKind,
    /// Its namespace and name.
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

/// Everything that the operator knows.
#[derive(Debug, Default)]
pub struct World {
    /// Every policy.
    pub policies: BTreeMap<ObjectKey, Policy>,
    /// Every store.
    pub stores: BTreeMap<ObjectKey, Store>,
    /// Every pod that runs or will run. Pods that ended or are being deleted are not included.
    pub pods: BTreeMap<ObjectKey, Pod>,
    /// The pods that each workload selects; `None` for a workload that selects none.
    pub workloads: BTreeMap<Workload, Option<Selector>>,
    /// The ports of each Service. Its pods are in `workloads`.
    pub services: BTreeMap<ObjectKey, Service>,
    /// The distinct memberships of all pods.
    memberships: HashSet<Arc<Membership>>,
}

/// What changed since the last plan.
#[derive(Debug, Default)]
pub struct DirtySet {
    /// Policies that were added, changed or removed.
    pub policies: BTreeSet<ObjectKey>,
    /// Pods that were added, changed or removed.
    pub pods: BTreeSet<ObjectKey>,
    /// Stores that were added, changed or removed.
    pub stores: BTreeSet<ObjectKey>,
    /// Workloads that were added, changed or removed.
    pub workloads: BTreeSet<Workload>,
}

/// One change. `None`: the object was removed.
#[derive(Debug)]
pub enum Change {
    /// A policy, and its stored status, which is never a reason to plan again.
    Policy(ObjectKey, Option<(Policy, StoredStatus)>),
    /// A store, and its stored status, which is never a reason to compile again.
    Store(ObjectKey, Option<(Store, Option<Box<RateLimitStoreStatus>>)>),
    /// A pod.
    Pod(ObjectKey, Option<Pod>),
    /// A workload that is not a Service.
    Workload(Workload, Option<Option<Selector>>),
    /// A Service: the pods that it selects, and its ports.
    Service(ObjectKey, Option<(Option<Selector>, Service)>),
}

/// What a source stores together with a policy.
#[derive(Clone, Debug, Default)]
pub struct StoredStatus {
    /// The policy's status.
    pub status: Option<Box<RateLimitPolicyStatus>>,
    /// The resource version of the whole object, if the source has versions.
    pub version: Option<String>,
}

/// A message from a source.
#[derive(Debug, Default)]
pub struct Update {
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// Whether everything that existed when the source started was sent. Nothing may be pushed before: a pod whose
    /// policies are not listed yet would lose its limits.
    pub complete: bool,
}

impl World {
    /// Applies a change, and marks what it makes dirty. Returns false if it changed nothing.
    pub fn apply(&mut self, change: Change, dirty: &mut DirtySet) -> bool {
        match change {
            Change::Policy(key, value) => {
                put(&mut self.policies, key, value.map(|(policy, _)| policy), &mut dirty.policies)
            }
            Change::Store(key, value) => put(&mut self.stores, key, value.map(|(store, _)| store), &mut dirty.stores),
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

    /// A world of these policies.
    #[cfg(test)]
    pub(crate) fn of_policies(policies: BTreeMap<ObjectKey, Policy>) -> Self {
        Self { policies, ..Self::default() }
    }

    /// Shares equal memberships: thousands of pods have the same few hundred.
    fn share(&mut self, membership: Arc<Membership>) -> Arc<Membership> {
        if let Some(shared) = self.memberships.get(&membership) {
            return shared.clone();
        }
        // Removes unused memberships when the table would have to grow.
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
    fn a_new_status_alone_dirties_nothing() {
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
            let pod = Pod { uid: name.to_owned(), membership, agent: Agent::Pending, store_secrets: None };
            world.apply(Change::Pod(ObjectKey::new("shop", name), Some(pod)), &mut dirty);
            world.pods[&ObjectKey::new("shop", name)].membership.clone()
        };
        let (a, b, c) = (add("a", "web"), add("b", "web"), add("c", "db"));
        assert!(Arc::ptr_eq(&a, &b) && !Arc::ptr_eq(&a, &c));
        // A pod whose labels change removes unused memberships, too.
        for number in 0..1000 {
            add("a", &number.to_string());
        }
        assert!(world.memberships.len() < 500, "{}", world.memberships.len());
    }
}
