//! Decides when everything that existed at the start is listed. This module does no I/O and reads no clock.
//!
//! A scope is a watched namespace, or the whole cluster. In a namespace, the right to list comes from a Role of that
//! namespace, which ends with the namespace, and which its tenant may change or delete. The other namespaces must not
//! wait for it. So after the apiserver has refused every listing of the kinds that are missing for some time, the
//! namespace is *lost*: the operator starts without it, and treats nothing in it as deleted.
//!
//! The operator receives all objects of a namespace together, after all its kinds are listed, because a pod whose
//! policies are not listed yet would lose its limits. Until then, only the newest state of each object is in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::world::{Change, ObjectKey, Update, Workload, WorkloadKind};

/// The time for which the apiserver refuses every listing of the missing kinds before a namespace is lost.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// The listings of all scopes.
#[derive(Debug)]
pub(super) struct FirstListings {
    scopes: Vec<Scope>,
    is_complete: bool,
}

#[derive(Debug)]
struct Scope {
    namespace: Option<Arc<str>>,
    /// The kinds that were not listed yet.
    unlisted: BTreeSet<&'static str>,
    /// The kinds whose last listing was refused, and that were never listed.
    refused: BTreeSet<&'static str>,
    /// The time since which all kinds that were not listed are refused.
    refused_since: Option<Instant>,
    is_lost: bool,
    /// The objects of a namespace, each with its newest change, until all kinds are listed.
    held: BTreeMap<Object, Change>,
}

/// The name of an object with a change.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Policy(ObjectKey),
    Store(ObjectKey),
    Pod(ObjectKey),
    Workload(Workload),
}

impl Scope {
    /// Holds a change back. The operator has received nothing of this namespace, so a deleted object is forgotten.
    fn hold(&mut self, change: Change) {
        let (object, exists) = match &change {
            Change::Policy(key, policy) => (Object::Policy(key.clone()), policy.is_some()),
            Change::Store(key, store) => (Object::Store(key.clone()), store.is_some()),
            Change::Pod(key, pod) => (Object::Pod(key.clone()), pod.is_some()),
            Change::Leaving(key, _) => (Object::Pod(key.clone()), true),
            Change::Workload(workload, selector) => (Object::Workload(workload.clone()), selector.is_some()),
            Change::Service(key, service) => {
                let workload = Workload { kind: WorkloadKind::Service, key: key.clone() };
                (Object::Workload(workload), service.is_some())
            }
            // Only this module reports it.
            Change::Lost(..) => return,
        };
        if exists {
            self.held.insert(object, change);
        } else {
            self.held.remove(&object);
        }
    }
}

impl FirstListings {
    /// Returns the listings of these kinds, in each of these scopes.
    pub(super) fn new(scopes: &[Option<String>], kinds: &[&'static str]) -> Self {
        let scope = |namespace: &Option<String>| Scope {
            namespace: namespace.as_deref().map(Arc::from),
            unlisted: kinds.iter().copied().collect(),
            refused: BTreeSet::new(),
            refused_since: None,
            is_lost: false,
            held: BTreeMap::new(),
        };
        Self { scopes: scopes.iter().map(scope).collect(), is_complete: false }
    }

    /// Returns true if this scope is lost.
    pub(super) fn is_lost(&self, scope: usize) -> bool {
        self.scopes[scope].is_lost
    }

    /// Returns the number of lost namespaces.
    pub(super) fn lost(&self) -> usize {
        self.scopes.iter().filter(|scope| scope.is_lost).count()
    }

    /// Returns the update for changes of a scope.
    pub(super) fn change(&mut self, scope: usize, mut changes: Vec<Change>) -> Update {
        let of = &mut self.scopes[scope];
        if of.namespace.is_some() && !of.unlisted.is_empty() {
            changes.drain(..).for_each(|change| of.hold(change));
        }
        self.update(changes)
    }

    /// Returns the update for a kind that was listed. Its changes were reported before.
    pub(super) fn listed(&mut self, scope: usize, kind: &'static str) -> Update {
        let of = &mut self.scopes[scope];
        of.unlisted.remove(kind);
        of.refused.remove(kind);
        // The right may be returning kind by kind.
        of.refused_since = None;
        let mut changes = Vec::new();
        if of.unlisted.is_empty() {
            changes.extend(std::mem::take(&mut of.held).into_values());
            if std::mem::take(&mut of.is_lost) {
                changes.extend(of.namespace.clone().map(|namespace| Change::Lost(namespace, false)));
            }
        }
        self.update(changes)
    }

    /// Returns the update after the apiserver has refused to list a kind.
    pub(super) fn refused(&mut self, now: Instant, scope: usize, kind: &'static str) -> Update {
        let of = &mut self.scopes[scope];
        let mut changes = Vec::new();
        if of.unlisted.contains(kind) {
            of.refused.insert(kind);
        }
        if !of.is_lost && !of.unlisted.is_empty() && of.refused == of.unlisted {
            let since = *of.refused_since.get_or_insert(now);
            if let Some(namespace) = of.namespace.clone().filter(|_| now.duration_since(since) >= REFUSED_FOR) {
                of.is_lost = true;
                changes.push(Change::Lost(namespace, true));
            }
        }
        self.update(changes)
    }

    /// Records that a listing of a kind failed for another reason.
    pub(super) fn failed(&mut self, scope: usize, kind: &'static str) {
        let of = &mut self.scopes[scope];
        of.refused.remove(kind);
        of.refused_since = None;
    }

    /// Returns an update with these changes. It is complete once each scope is listed or lost, and at least one is listed.
    fn update(&mut self, changes: Vec<Change>) -> Update {
        let is_listed = |scope: &Scope| scope.unlisted.is_empty();
        let complete = !self.is_complete
            && self.scopes.iter().all(|scope| scope.is_lost || is_listed(scope))
            && self.scopes.iter().any(is_listed);
        self.is_complete |= complete;
        Update { changes, complete }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{AgentAddress, Membership, Pod};

    const KINDS: [&str; 2] = ["Pod", "Service"];

    fn listings(namespaces: &[&str]) -> FirstListings {
        let scopes: Vec<_> = namespaces.iter().map(|name| Some((*name).to_owned())).collect();
        FirstListings::new(&scopes, &KINDS)
    }

    fn refuse_all(listings: &mut FirstListings, now: Instant, scope: usize) -> bool {
        KINDS.map(|kind| listings.refused(now, scope, kind).complete).contains(&true)
    }

    #[test]
    fn a_namespace_is_lost_once_its_missing_listings_were_refused_for_some_time() {
        let start = crate::clock::now();
        for (what, step, expected) in [
            ("all are refused", (|_| {}) as fn(&mut FirstListings), true),
            ("one kind was listed in the meantime", |listings| drop(listings.listed(1, "Pod")), false),
            ("the apiserver failed in the meantime", |listings| listings.failed(1, "Pod"), false),
        ] {
            let mut listings = listings(&["a", "b"]);
            assert!(!KINDS.map(|kind| listings.listed(0, kind).complete).contains(&true), "{what}");
            assert!(!refuse_all(&mut listings, start, 1), "{what}");
            step(&mut listings);
            assert!(!refuse_all(&mut listings, start + REFUSED_FOR - Duration::from_millis(1), 1), "{what}");
            assert_eq!(refuse_all(&mut listings, start + REFUSED_FOR, 1), expected, "{what}");
            assert_eq!(listings.lost(), usize::from(expected), "{what}");
        }
    }

    fn pod(number: u32) -> ObjectKey {
        ObjectKey::new("b", number.to_string())
    }

    fn running(key: ObjectKey) -> Change {
        let pod = Pod::running(&key.name, Membership::Everything, AgentAddress::Pending);
        Change::Pod(key, Some(pod))
    }

    /// A tenant can have a Role with some of the kinds only.
    #[test]
    fn a_namespace_with_some_of_its_kinds_does_not_hold_back_the_others() {
        let start = crate::clock::now();
        let mut listings = listings(&["a", "b"]);
        for kind in KINDS {
            listings.listed(0, kind);
        }
        let early = listings.change(1, vec![running(pod(1))]);
        assert!(early.changes.is_empty(), "the policies of this pod are not listed: {early:?}");
        assert!(!listings.listed(1, "Pod").complete);
        assert!(!listings.refused(start, 1, "Service").complete);
        let Update { changes, complete } = listings.refused(start + REFUSED_FOR, 1, "Service");
        assert!(matches!(&changes[..], [Change::Lost(_, true)]) && complete, "{changes:?}");
        let Update { changes, complete } = listings.listed(1, "Service");
        assert!(matches!(&changes[..], [Change::Pod(_, Some(_)), Change::Lost(_, false)]), "{changes:?}");
        assert!(!complete);
        assert_eq!(listings.change(1, vec![running(pod(2))]).changes.len(), 1, "everything is listed");
    }

    /// The pods of a lost namespace change for weeks.
    #[test]
    fn the_newest_state_of_each_existing_object_is_held() {
        let start = crate::clock::now();
        let mut listings = listings(&["a", "b"]);
        refuse_all(&mut listings, start, 1);
        refuse_all(&mut listings, start + REFUSED_FOR, 1);
        for number in 0..10_000 {
            listings.change(1, vec![running(pod(0)), running(pod(1 + number))]);
            listings.change(1, vec![Change::Pod(pod(1 + number), None)]);
        }
        assert_eq!(listings.scopes[1].held.len(), 1);
        let changes: Vec<_> = KINDS.into_iter().flat_map(|kind| listings.listed(1, kind).changes).collect();
        assert!(matches!(&changes[..], [Change::Pod(key, Some(_)), Change::Lost(_, false)] if key.name == pod(0).name));
        assert!(listings.scopes[1].held.is_empty());
    }

    /// Without any listing, the operator can do nothing: it must leave the Lease to others.
    #[test]
    fn at_least_one_namespace_must_be_listed() {
        let start = crate::clock::now();
        let mut listings = listings(&["a", "b"]);
        for now in [start, start + REFUSED_FOR] {
            assert!(!refuse_all(&mut listings, now, 0) && !refuse_all(&mut listings, now, 1));
        }
        assert_eq!(listings.lost(), 2);
        assert_eq!(KINDS.map(|kind| listings.listed(0, kind).complete), [false, true]);
        assert_eq!(KINDS.map(|kind| listings.listed(1, kind).complete), [false, false], "only once");
    }

    #[test]
    fn the_whole_cluster_is_never_lost() {
        let start = crate::clock::now();
        let mut listings = FirstListings::new(&[None], &KINDS);
        assert!(!refuse_all(&mut listings, start, 0) && !refuse_all(&mut listings, start + REFUSED_FOR, 0));
        assert_eq!(listings.lost(), 0);
    }
}
