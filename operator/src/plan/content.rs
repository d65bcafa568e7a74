//! The content of snapshots: the policies of a pod. All pods with the same policies share one.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Bytes;
use weir_expressions::MAX_EXPRESSION_BYTES;
use weir_wire::{MAX_LOG_BYTES, MAX_SNAPSHOT_BYTES, PolicyRules, Store};

use crate::{
    compile::{CompiledPolicy, StoreSecrets, revision_of},
    world::ObjectKey,
};

/// The maximum length of policies as JSON, in bytes, so that the snapshot around them fits an agent's limit.
const MOST: usize = MAX_SNAPSHOT_BYTES - 256;

/// The policies of one or more agents: a snapshot without its sequence.
#[derive(Debug)]
pub struct Content {
    /// The hash that names the content.
    pub revision: String,
    /// The policies, the oldest first, then by name.
    pub policies: Vec<Arc<CompiledPolicy>>,
    /// The rules of scope Fleet, by the name of their counters.
    pub fleet: Vec<CountedRule>,
    /// The policies whose last good rules this operator cannot read or compile, by UID. An agent that enforces one of
    /// them must not get this content, because it would lose the limits of that policy.
    pub unreadable: Unreadable,
    /// The end of the snapshot's JSON: the policies, their stores, and the brace after them. It exists only while it is
    /// sent: if each pod of a namespace has other labels, each pod can have a content of its own, with up to 1 MiB.
    json: Mutex<Option<Weak<[u8]>>>,
}

/// Policies by UID.
pub(super) type Unreadable = BTreeMap<String, ObjectKey>;

/// A rule that the operator counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CountedRule {
    /// The name of the rule's counters.
    pub counters: String,
    /// The namespace and the name of the policy.
    pub policy: Arc<str>,
    /// The stamp of the limits.
    pub stamp: u64,
    /// The number of agents that divide the limits while they are cut off.
    pub sharers: u32,
    /// Whether descriptors can contain their own limits.
    pub accepts_limits: bool,
}

impl Content {
    /// Returns a content of these policies, as far as they fit, in this order.
    pub(super) fn new(policies: &[Arc<CompiledPolicy>]) -> Self {
        let policies = fitting(policies, &[]);
        Self::named(snapshot_revision(&policies, &Unreadable::new()), policies, Unreadable::new())
    }

    fn named(revision: String, policies: Vec<Arc<CompiledPolicy>>, unreadable: Unreadable) -> Self {
        let fleet = fleet(&policies);
        Self { revision, policies, fleet, unreadable, json: Mutex::default() }
    }

    /// Returns the end of the snapshot's JSON. Agents to which it is sent at the same time share it.
    fn json(&self) -> Bytes {
        let mut known = self.json.lock().unwrap_or_else(PoisonError::into_inner);
        let json = known.as_ref().and_then(Weak::upgrade).unwrap_or_else(|| {
            let json = Arc::from(self.serialized());
            *known = Some(Arc::downgrade(&json));
            json
        });
        Bytes::from_owner(json)
    }

    fn serialized(&self) -> Vec<u8> {
        let plain: Vec<&PolicyRules> = self.policies.iter().map(|policy| &policy.wire).collect();
        let mut json = serde_json::to_vec(&plain).expect("rules are plain data, which always serializes to JSON");
        let stores = stores(&self.policies);
        if !stores.is_empty() {
            json.extend_from_slice(br#","stores":"#);
            json.extend(serde_json::to_vec(&stores).expect("stores are plain data, which always serializes to JSON"));
        }
        json.push(b'}');
        json
    }

    /// Returns the Secrets that the agent needs for its stores, in order.
    pub fn secrets(&self) -> BTreeSet<&StoreSecrets> {
        self.policies.iter().flat_map(|policy| &policy.secrets).collect()
    }

    /// Returns the snapshot as JSON, in two parts: the start contains the sequence, and agents to which it is sent at
    /// the same time share the end.
    pub fn snapshot(&self, sequence: u64) -> (String, Bytes) {
        let start = format!(
            r#"{{"wireVersion":{},"sequence":{sequence},"revision":"{}","policies":"#,
            weir_wire::WIRE_VERSION,
            self.revision,
        );
        (start, self.json())
    }

    /// Returns the snapshot as one piece of JSON.
    pub fn body(&self, sequence: u64) -> String {
        let (mut body, end) = self.snapshot(sequence);
        body.push_str(std::str::from_utf8(&end).expect("JSON is UTF-8"));
        body
    }
}

#[cfg(test)]
impl Content {
    /// Returns a content of one policy that claims this revision.
    pub(crate) fn of_policy(revision: &str, policy: CompiledPolicy) -> Arc<Self> {
        Arc::new(Self::named(revision.to_owned(), vec![Arc::new(policy)], Unreadable::new()))
    }

    /// Returns a content without policies that claims this revision.
    pub(crate) fn claiming(revision: &str) -> Arc<Self> {
        Self::without(revision, &[])
    }

    /// Returns a content like [`claiming`](Self::claiming), while this operator cannot read these policies.
    pub(crate) fn without(revision: &str, unreadable: &[&str]) -> Arc<Self> {
        let unreadable = unreadable.iter().map(|uid| ((*uid).to_owned(), ObjectKey::new("shop", *uid))).collect();
        Arc::new(Self::named(revision.to_owned(), Vec::new(), unreadable))
    }

    /// Returns a content like [`claiming`](Self::claiming) with a rule of scope Fleet.
    pub(crate) fn counted(revision: &str) -> Arc<Self> {
        let policy = Arc::from("shop/api");
        let rule =
            CountedRule { counters: "shop/api.all".to_owned(), policy, stamp: 1, sharers: 2, accepts_limits: false };
        Arc::new(Self { fleet: vec![rule], ..Self::named(revision.to_owned(), Vec::new(), Unreadable::new()) })
    }
}

/// The contents in use, by revision.
#[derive(Debug, Default)]
pub(super) struct Contents {
    known: HashMap<String, Weak<Content>>,
    /// The number of contents that were made.
    #[cfg(test)]
    pub(super) made: usize,
}

impl Contents {
    /// Returns the content of these policies, as far as they fit. It is an existing content or a new one, and replaces
    /// `before`.
    pub(super) fn of(
        &mut self,
        policies: &[Arc<CompiledPolicy>],
        unreadable: Unreadable,
        before: &[Arc<CompiledPolicy>],
    ) -> Arc<Content> {
        let policies = fitting(policies, before);
        let revision = snapshot_revision(&policies, &unreadable);
        if let Some(content) = self.known.get(&revision).and_then(Weak::upgrade) {
            return content;
        }
        // Removes unused contents when the table would have to grow.
        if self.known.len() == self.known.capacity() {
            self.known.retain(|_, content| content.strong_count() > 0);
        }
        #[cfg(test)]
        {
            self.made += 1;
        }
        let content = Arc::new(Content::named(revision.clone(), policies, unreadable));
        self.known.insert(revision, Arc::downgrade(&content));
        content
    }
}

/// Returns the policies that fit into a snapshot, in order. A policy that has grown too large keeps its rules from
/// `before`, for the present number of pods.
fn fitting(policies: &[Arc<CompiledPolicy>], before: &[Arc<CompiledPolicy>]) -> Vec<Arc<CompiledPolicy>> {
    let mut room = Room { bytes: MOST, logs: MAX_LOG_BYTES, expressions: MAX_EXPRESSION_BYTES, stores: HashSet::new() };
    let fit = policies.iter().filter_map(|policy| {
        if room.take(policy) {
            return Some(policy.clone());
        }
        let earlier = before.iter().find(|earlier| earlier.uid == policy.uid)?;
        // The number of pods can be too long by some digits.
        [earlier.with_pods(policy.pods), earlier.clone()].into_iter().find(|earlier| room.take(earlier))
    });
    fit.collect()
}

/// The room that is left in a snapshot.
struct Room {
    bytes: usize,
    logs: u64,
    expressions: u64,
    /// The stores of the policies in the snapshot, which contains each store once.
    stores: HashSet<String>,
}

impl Room {
    /// Takes the room for a policy. Returns false if there is too little.
    fn take(&mut self, policy: &CompiledPolicy) -> bool {
        let stores = policy.stores.iter().zip(&policy.size.stores);
        let stores = stores.filter(|(store, _)| !self.stores.contains(&store.name));
        let length = stores.fold(policy.size.rules, |sum, (_, length)| sum.saturating_add(*length));
        let left = self.bytes.checked_sub(length).zip(self.logs.checked_sub(policy.size.logs));
        let left = left.zip(self.expressions.checked_sub(policy.size.expressions));
        if let Some(left) = left {
            ((self.bytes, self.logs), self.expressions) = left;
            self.stores.extend(policy.stores.iter().map(|store| store.name.clone()));
        }
        left.is_some()
    }
}

/// Returns each store of these policies once. Policies of one namespace share their stores.
fn stores(policies: &[Arc<CompiledPolicy>]) -> Vec<&Store> {
    let mut stores: Vec<&Store> = Vec::new();
    for store in policies.iter().flat_map(|policy| &policy.stores) {
        if stores.iter().all(|known| known.name != store.name) {
            stores.push(store);
        }
    }
    stores
}

/// Returns the rules that the operator counts, in order.
fn fleet(policies: &[Arc<CompiledPolicy>]) -> Vec<CountedRule> {
    let mut rules = Vec::new();
    for policy in policies {
        let shared = policy.rules.iter().filter_map(|rule| Some((rule, rule.shared.as_ref()?)));
        let counted = shared.filter(|(_, shared)| shared.is_fleet());
        rules.extend(counted.map(|(rule, shared)| CountedRule {
            counters: shared.counters.clone(),
            policy: format!("{}/{}", policy.namespace, policy.name).into(),
            stamp: shared.stamp,
            sharers: shared.sharers,
            accepts_limits: rule.limit_override.is_some(),
        }));
    }
    rules.sort_unstable();
    rules
}

/// Returns the revision of a list of policies, independent of their order. It names the policies that are unreadable,
/// because a link must learn when agents need not keep them any longer.
fn snapshot_revision(policies: &[Arc<CompiledPolicy>], unreadable: &Unreadable) -> String {
    let known = policies.iter().map(|p| (p.uid.as_str(), p.revision.as_str()));
    let mut names: Vec<(&str, &str)> = known.chain(unreadable.keys().map(|uid| (uid.as_str(), ""))).collect();
    names.sort_unstable();
    revision_of(&names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_exists_only_while_it_is_sent() {
        let content = Content::claiming("a");
        let is_in_memory = || content.json.lock().expect("no panic").as_ref().and_then(Weak::upgrade).is_some();
        assert!(!is_in_memory());
        let [(first, shared), (second, also)] = [1, 2].map(|sequence| content.snapshot(sequence));
        assert_eq!(shared.as_ptr(), also.as_ptr());
        assert!(first.contains(r#""sequence":1,"#) && second.contains(r#""sequence":2,"#));
        drop((shared, also));
        assert!(!is_in_memory());
        assert_eq!(content.body(1), format!("{first}[]}}"));
    }
}
