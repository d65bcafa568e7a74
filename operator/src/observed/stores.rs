//! The pods that reach the stores of their rules, by the last reports of their agents.

use std::{
    collections::{BTreeMap, HashMap},
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
    pub(super) fn set(&mut self, pod: &ObjectKey, told: &[StoreStatus]) -> Vec<String> {
        let before = self.by_pod.get(pod).map_or(&[][..], |before| before);
        if before == told {
            return Vec::new();
        }
        let news = |ours: &[StoreStatus], others: &[StoreStatus]| -> Vec<String> {
            ours.iter().filter(|it| !others.contains(it)).map(|it| it.name.clone()).collect()
        };
        let mut names = news(before, told);
        names.extend(news(told, before));
        names.sort_unstable();
        names.dedup();
        self.forget(pod);
        for store in told {
            *self.using.entry(store.name.clone()).or_default() += 1;
            if !store.reached {
                self.lost.entry(store.name.clone()).or_default().insert(pod.clone(), store.clone());
            }
        }
        if !told.is_empty() {
            self.by_pod.insert(pod.clone(), told.to_vec());
        }
        names
    }

    /// Removes a pod. Returns the names of its stores.
    pub(super) fn forget(&mut self, pod: &ObjectKey) -> Vec<String> {
        let before = self.by_pod.remove(pod).unwrap_or_default();
        for store in &before {
            if let Some(using) = self.using.get_mut(&store.name) {
                *using -= 1;
            }
            self.using.retain(|_, using| *using > 0);
            if let Some(lost) = self.lost.get_mut(&store.name) {
                lost.remove(pod);
            }
            self.lost.retain(|_, lost| !lost.is_empty());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_agents_say_is_counted_and_forgotten() {
        let pod = |name: &str| ObjectKey::new("shop", name);
        let says = |name: &str, reached: bool| StoreStatus {
            name: name.to_owned(),
            reached,
            since_unix_millis: 5,
            error: None,
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
}
