//! The pods that reach the stores of their rules, by the last reports of their agents.
//!
//! A link passes on only the stores of its pod's contents (`link/bound.rs`). So a pod cannot be listed at a store of
//! another namespace.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::Hash,
    sync::Arc,
};

use weir_wire::StoreStatus;

use crate::world::ObjectKey;

/// The agents' reports about stores, by the store's name on the wire.
#[derive(Debug, Default)]
pub struct ReachedStores {
    by_pod: HashMap<ObjectKey, Vec<StoreStatus>>,
    /// The number of pods that use each store.
    using: BTreeMap<String, usize>,
    /// The pods that do not reach each store.
    lost: BTreeMap<String, BTreeMap<ObjectKey, StoreStatus>>,
}

impl ReachedStores {
    /// Records the report of a pod's agent. Returns the names of the stores whose state it changed.
    pub(super) fn set(&mut self, pod: &ObjectKey, reported: &[StoreStatus]) -> Vec<String> {
        let before = self.by_pod.get(pod).map_or(&[][..], |before| before);
        if before == reported {
            return Vec::new();
        }
        let mut names: Vec<String> = difference(before, reported).into_iter().map(|it| it.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        self.forget(pod);
        for store in reported {
            *self.using.entry(store.name.clone()).or_default() += 1;
            if !store.reached {
                self.lost.entry(store.name.clone()).or_default().insert(pod.clone(), store.clone());
            }
        }
        if !reported.is_empty() {
            self.by_pod.insert(pod.clone(), reported.to_vec());
        }
        names
    }

    /// Removes a pod. Returns the names of its stores.
    pub(super) fn forget(&mut self, pod: &ObjectKey) -> Vec<String> {
        let before = self.by_pod.remove(pod).unwrap_or_default();
        for store in &before {
            if let Some(using) = self.using.get_mut(&store.name) {
                *using -= 1;
                if *using == 0 {
                    self.using.remove(&store.name);
                }
            }
            if let Some(lost) = self.lost.get_mut(&store.name) {
                lost.remove(pod);
                if lost.is_empty() {
                    self.lost.remove(&store.name);
                }
            }
        }
        before.into_iter().map(|store| store.name).collect()
    }

    /// Returns the number of pods that use a store.
    pub fn using(&self, name: &str) -> usize {
        self.using.get(name).copied().unwrap_or(0)
    }

    /// Returns the pods that do not reach a store, with their reports.
    pub fn lost(&self, name: &str) -> impl Iterator<Item = (&ObjectKey, &StoreStatus)> {
        self.lost.get(name).into_iter().flatten()
    }

    /// Returns the pods of a namespace that do not reach a store, with their reports. Only the operator is a store of
    /// several namespaces.
    pub fn lost_in(&self, name: &str, namespace: &Arc<str>) -> impl Iterator<Item = (&ObjectKey, &StoreStatus)> {
        let from = ObjectKey::new(namespace.clone(), "");
        let lost = self.lost.get(name).into_iter().flat_map(move |lost| lost.range(from.clone()..));
        lost.take_while(move |(pod, _)| pod.namespace == *namespace)
    }
}

/// Returns the items that only one of the lists has.
fn difference<'a, T: Eq + Hash>(before: &'a [T], now: &'a [T]) -> Vec<&'a T> {
    let (before, now): (HashSet<&T>, HashSet<&T>) = (before.iter().collect(), now.iter().collect());
    before.symmetric_difference(&now).copied().collect()
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, hash::Hasher};

    use super::*;

    #[test]
    fn what_agents_say_is_counted_and_forgotten() {
        let pod = |name: &str| ObjectKey::new("shop", name);
        let says = |name: &str, reached: bool| {
            let name = name.to_owned();
            StoreStatus { name, reached, since_unix_millis: 5, error: None }
        };
        let mut stores = ReachedStores::default();
        let lost = |stores: &ReachedStores| stores.lost("s").map(|(pod, _)| pod.name.to_string()).collect::<Vec<_>>();
        assert_eq!(stores.set(&pod("a"), &[says("s", true)]), ["s"]);
        assert_eq!(stores.set(&pod("a"), &[says("s", true)]), [""; 0]);
        assert_eq!(stores.set(&pod("b"), &[says("s", false), says("t", true)]), ["s", "t"]);
        assert_eq!((stores.using("s"), stores.using("t"), lost(&stores)), (2, 1, vec!["b".to_owned()]));
        assert_eq!(stores.set(&pod("b"), &[says("s", true), says("t", true)]), ["s"]);
        assert_eq!(lost(&stores), [""; 0]);
        assert_eq!(stores.set(&pod("b"), &[says("t", false)]), ["s", "t"]);
        for namespace in ["before", "shopping"] {
            stores.set(&ObjectKey::new(namespace, "b"), &[says("t", false)]);
        }
        let lost: Vec<_> = stores.lost_in("t", &"shop".into()).map(|(pod, _)| pod.clone()).collect();
        assert_eq!((lost, stores.lost("t").count()), (vec![pod("b")], 3));
        assert_eq!((stores.using("s"), stores.forget(&pod("b"))), (1, vec!["t".to_owned()]));
        for pod in [pod("a"), ObjectKey::new("before", "b"), ObjectKey::new("shopping", "b")] {
            stores.forget(&pod);
        }
        assert!(stores.using.is_empty() && stores.lost.is_empty() && stores.by_pod.is_empty(), "{stores:?}");
    }

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    #[derive(Debug)]
    struct Counted(usize);

    impl PartialEq for Counted {
        fn eq(&self, other: &Self) -> bool {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0 == other.0
        }
    }

    impl Eq for Counted {}

    impl Hash for Counted {
        fn hash<H: Hasher>(&self, state: &mut H) {
            self.0.hash(state);
        }
    }

    /// A comparison of each store with each other one would stop the engine for seconds.
    #[test]
    fn the_work_for_a_report_grows_with_its_stores_only() {
        const STORES: usize = 20_000;
        let list = |from: usize| (from..from + STORES).map(Counted).collect::<Vec<_>>();
        let (before, now) = (list(0), list(1));
        let mut changed = difference(&before, &now);
        changed.sort_by_key(|counted| counted.0);
        assert_eq!(changed, [&Counted(0), &Counted(STORES)]);
        let comparisons = COMPARISONS.get();
        assert!(comparisons < 10 * STORES, "{comparisons} comparisons");

        let says = |reached: bool| {
            let name = |number: usize| format!("shop/{number}");
            let store = |number| StoreStatus { name: name(number), reached, since_unix_millis: 5, error: None };
            (0..STORES).map(store).collect::<Vec<_>>()
        };
        let (mut stores, pod) = (ReachedStores::default(), ObjectKey::new("shop", "a"));
        for reached in [false, true] {
            assert_eq!(stores.set(&pod, &says(reached)).len(), STORES);
        }
        assert_eq!((stores.using.len(), stores.lost.len(), stores.forget(&pod).len()), (STORES, 0, STORES));
        assert!(stores.using.is_empty(), "{stores:?}");
    }
}
