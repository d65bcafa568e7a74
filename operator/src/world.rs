//! The world: the policies, stores, pods and workloads that the operator has received from its source. Plain data.
//!
//! Sources report each difference as a [`Change`], and only the engine applies changes. This module does no I/O, never
//! waits and makes no decisions.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::Arc,
};

use jiff::Timestamp;
use kube::{Resource, core::Selector};
use serde_json::{Value, json};
use weir_api::{RateLimitPolicySpec, RateLimitPolicyStatus, RateLimitStoreSpec, RateLimitStoreStatus};

use crate::pod_ports::{PodPorts, Service};

/// The namespace and name of an object. Clones share the text, because about ten structures store a clone for each pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// Returns the key of the object `namespace/name`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Returns the object of kind `K` with this key and this spec.
    pub(crate) fn document<K: Resource<DynamicType = ()>>(&self, spec: &Value) -> Value {
        json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": {"name": &*self.name, "namespace": &*self.namespace},
            "spec": spec,
        })
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
    /// The path of the field, such as `spec.rules[0].limits[0].requests`.
    pub path: String,
    /// The description of the fault, and how to fix it.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.message) } else { write!(f, "{}: {}", self.path, self.message) }
    }
}

/// A policy as its source provides it.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The UID of the policy. The agents' counters belong to this UID.
    pub uid: String,
    /// The generation, which grows with each change of the spec.
    pub generation: i64,
    /// The creation time. The policies of a pod are ordered by it, oldest first.
    pub created: Option<Timestamp>,
    /// The time at which the operator first read this spec in a file, or a later time; `None` in a cluster, or if the
    /// time is not known.
    pub changed: Option<Timestamp>,
    /// The spec, or the faults because of which it cannot be read.
    pub spec: Result<Arc<RateLimitPolicySpec>, Vec<Fault>>,
    /// The policy's file; `None` in a cluster.
    pub file: Option<Arc<str>>,
}

/// A store as its source provides it.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// The UID of the store; empty if the store comes from a file.
    pub uid: String,
    /// The generation, which grows with each change of the spec.
    pub generation: i64,
    /// The spec, or the faults because of which it cannot be read.
    pub spec: Result<Arc<RateLimitStoreSpec>, Vec<Fault>>,
}

/// A pod that policies may target, or an agent outside of any cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The UID, which distinguishes the pod from a later pod of the same name.
    pub uid: Arc<str>,
    /// The labels and ports of the pod. Pods of one template share them.
    pub membership: Arc<Membership>,
    /// The state of the pod's agent.
    pub agent: AgentAddress,
    /// False if the agent has never run, as the kubelet reports it. So the agent can have used no limit.
    pub has_run: bool,
    /// The Secrets of stores that the pod's agent can read, as the annotation `weir.dev/store-secrets` lists them.
    pub store_secrets: Option<Arc<str>>,
}

/// The properties of a pod that decide whether a policy targets it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Membership {
    /// A pod of a cluster. Policies of its namespace can select its labels. Its ports do not affect the selection. They
    /// are part of the membership because they are the same for all pods of a template.
    Pod {
        /// The labels of the pod.
        labels: BTreeMap<String, String>,
        /// The ports of the pod.
        ports: PodPorts,
        /// The workload that created the pod. It selects the pod even after its deletion, until the pod is deleted, too.
        controller: Option<Workload>,
    },
    /// A standalone agent with labels. Policies of any namespace can select them.
    Labelled(BTreeMap<String, String>),
    /// A standalone agent without labels. Every policy targets it.
    Everything,
}

#[cfg(test)]
impl Policy {
    /// Returns a policy with a spec in JSON.
    pub(crate) fn of_spec(uid: &str, generation: i64, spec: Value) -> Self {
        let spec = Ok(Arc::new(serde_json::from_value(spec).expect("a spec")));
        Self { uid: uid.to_owned(), generation, created: None, changed: None, spec, file: None }
    }
}

#[cfg(test)]
impl Pod {
    /// Returns a pod whose agent has run.
    pub(crate) fn running(uid: &str, membership: Membership, agent: AgentAddress) -> Self {
        Self { uid: uid.into(), membership: membership.into(), agent, has_run: true, store_secrets: None }
    }
}

#[cfg(test)]
impl Change {
    /// Returns the change that adds or replaces this policy, which has no status.
    pub(crate) fn to_policy(key: &ObjectKey, policy: Policy) -> Self {
        Self::Policy(key.clone(), Some((policy, StoredStatus::default())))
    }
}

#[cfg(test)]
impl Membership {
    /// Returns the membership of a pod of which only the labels are known.
    pub(crate) fn of_labels(labels: BTreeMap<String, String>) -> Self {
        Self::Pod { labels, ports: PodPorts::default(), controller: None }
    }

    /// Returns the membership of a pod with the label `app`.
    pub(crate) fn of_app(app: &str) -> Self {
        Self::of_labels(BTreeMap::from([("app".to_owned(), app.to_owned())]))
    }
}

/// The state of a pod's agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AgentAddress {
    /// The pod has no agent. The text explains why, and how to fix it.
    None(Cow<'static, str>),
    /// The pod has an agent, but no address yet.
    Pending,
    /// The agent can be reached: the base URL of its control API, without a trailing slash.
    At(Arc<str>),
}

/// A workload that a policy can name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload {
    /// The kind of the workload.
    pub kind: WorkloadKind,
    /// The namespace and name of the workload.
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

/// All objects that the operator has received.
#[derive(Debug, Default)]
pub struct World {
    /// Every policy.
    pub policies: BTreeMap<ObjectKey, Policy>,
    /// Every store.
    pub stores: BTreeMap<ObjectKey, Store>,
    /// Every pod that runs or will run. Pods that ended or are being deleted are not included.
    pub pods: BTreeMap<ObjectKey, Pod>,
    /// The pods that are being deleted and have not ended. No policy targets them, but their agents can still serve
    /// requests.
    pub leaving: BTreeMap<ObjectKey, Pod>,
    /// The pods that each workload selects, or `None` for a workload that selects none.
    pub workloads: BTreeMap<Workload, Option<Selector>>,
    /// The ports of each Service. The selector of the Service is in `workloads`.
    pub services: BTreeMap<ObjectKey, Service>,
    /// The namespaces that the source cannot list, so their policies are not known.
    pub lost: BTreeSet<Arc<str>>,
    /// The distinct memberships of all pods.
    memberships: HashSet<Arc<Membership>>,
}

/// The objects that changed since the last plan.
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

/// One change of an object. `None` means that the object was removed.
#[derive(Debug)]
pub enum Change {
    /// A policy, and its stored status, which is never a reason to plan again.
    Policy(ObjectKey, Option<(Policy, StoredStatus)>),
    /// A store, and its stored status, which is never a reason to compile again.
    Store(ObjectKey, Option<(Store, Option<Box<RateLimitStoreStatus>>)>),
    /// A pod, or `None` if it was deleted or has ended.
    Pod(ObjectKey, Option<Pod>),
    /// A pod that is being deleted and has not ended.
    Leaving(ObjectKey, Pod),
    /// A workload that is not a Service.
    Workload(Workload, Option<Option<Selector>>),
    /// A Service: the pods that it selects, and its ports.
    Service(ObjectKey, Option<(Option<Selector>, Service)>),
    /// A namespace, and whether the source cannot list it.
    Lost(Arc<str>, bool),
}

/// The status that a source stores with a policy.
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
    /// True once the source has sent everything that existed at its start. The engine must push nothing earlier: a pod
    /// whose policies are not listed yet would lose its limits.
    pub complete: bool,
}

impl World {
    /// Applies a change, and marks the affected objects as dirty. Returns false if nothing changed.
    pub fn apply(&mut self, change: Change, dirty: &mut DirtySet) -> bool {
        match change {
            Change::Policy(key, value) => {
                put(&mut self.policies, key, value.map(|(policy, _)| policy), &mut dirty.policies)
            }
            Change::Store(key, value) => put(&mut self.stores, key, value.map(|(store, _)| store), &mut dirty.stores),
            Change::Pod(key, value) => {
                let value = value.map(|pod| Pod { membership: self.intern(pod.membership), ..pod });
                let has_left = put(&mut self.leaving, key.clone(), None, &mut dirty.pods);
                put(&mut self.pods, key, value, &mut dirty.pods) || has_left
            }
            Change::Leaving(key, pod) => {
                let pod = Pod { membership: self.intern(pod.membership), ..pod };
                let leaves = put(&mut self.pods, key.clone(), None, &mut dirty.pods);
                put(&mut self.leaving, key, Some(pod), &mut dirty.pods) || leaves
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
            Change::Lost(namespace, is_lost) => {
                if is_lost {
                    self.lost.insert(namespace)
                } else {
                    self.lost.remove(&namespace)
                };
                false
            }
        }
    }

    /// Returns a world that contains only these policies.
    #[cfg(test)]
    pub(crate) fn of_policies(policies: BTreeMap<ObjectKey, Policy>) -> Self {
        Self { policies, ..Self::default() }
    }

    /// Returns the shared copy of an equal membership: thousands of pods have only a few hundred distinct ones.
    fn intern(&mut self, membership: Arc<Membership>) -> Arc<Membership> {
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
                changed: None,
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
            let pod = Pod::running(name, Membership::of_app(app), AgentAddress::Pending);
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
