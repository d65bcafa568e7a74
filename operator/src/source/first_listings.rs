//! Decides when everything that existed at the start is listed. This module does no I/O and reads no clock.
//!
//! A scope is a watched namespace, or the whole cluster. In a namespace, the right to list comes from a Role of that
//! namespace, which ends with the namespace, and which its tenant may delete. The other namespaces must not wait for it.
//! So after the apiserver has refused every listing of a namespace for some time, the namespace is *lost*: the operator
//! starts without it, and treats nothing in it as deleted. If the apiserver permits its listings later, the operator
//! receives all of them together, because a pod whose policies are not listed yet would lose its limits.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::world::{Change, Update};

/// The time for which the apiserver refuses every listing of a namespace before the namespace is lost.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// The listings of all scopes.
#[derive(Debug)]
pub(super) struct FirstListings {
    /// The number of kinds in each scope.
    kinds: usize,
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
    /// The time since which all kinds are refused.
    refused_since: Option<Instant>,
    is_lost: bool,
    /// What was listed since the namespace was lost.
    held: Vec<Change>,
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
            held: Vec::new(),
        };
        Self { kinds: kinds.len(), scopes: scopes.iter().map(scope).collect(), is_complete: false }
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
        if of.is_lost {
            of.held.append(&mut changes);
        }
        self.update(changes)
    }

    /// Returns the update for a kind that was listed. Its changes were reported before.
    pub(super) fn listed(&mut self, scope: usize, kind: &'static str) -> Update {
        let of = &mut self.scopes[scope];
        of.unlisted.remove(kind);
        of.refused.remove(kind);
        let mut changes = Vec::new();
        if of.is_lost && of.unlisted.is_empty() {
            of.is_lost = false;
            changes = std::mem::take(&mut of.held);
            changes.extend(of.namespace.clone().map(|namespace| Change::Lost(namespace, false)));
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
        if !of.is_lost && of.refused.len() == self.kinds {
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

    const KINDS: [&str; 2] = ["Pod", "Service"];

    fn listings(namespaces: &[&str]) -> FirstListings {
        let scopes: Vec<_> = namespaces.iter().map(|name| Some((*name).to_owned())).collect();
        FirstListings::new(&scopes, &KINDS)
    }

    fn refuse_all(listings: &mut FirstListings, now: Instant, scope: usize) -> bool {
        KINDS.map(|kind| listings.refused(now, scope, kind).complete).contains(&true)
    }

    #[test]
    fn a_namespace_is_lost_once_all_its_listings_were_refused_for_some_time() {
        let start = crate::clock::now();
        for (what, step, expected) in [
            ("all are refused", (|_| {}) as fn(&mut FirstListings), true),
            ("one kind was listed", |listings| drop(listings.listed(1, "Pod")), false),
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
