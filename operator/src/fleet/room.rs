//! The room for keys and for times in their logs, which all rules and namespaces share.

use std::{collections::HashMap, sync::Arc};

use super::unknown::namespace;
use crate::plan::CountedRule;

/// The maximum number of keys. A key takes 560 bytes, and 90 bytes more for each further limit of its rule. A table of
/// this size has 2^20 buckets. With the keys, it takes about 500 MB, or 580 MB with two limits. The operator has 1 GiB.
/// A former limit takes about 110 bytes, and a key has at most six. So half of the keys, which one namespace can have,
/// take at most 300 MB more after changes of strategies.
pub(super) const MOST_KEYS: usize = if cfg!(test) { 2_000 } else { 900_000 };
/// The maximum number of times in the logs of all keys. They take 64 MiB.
pub(super) const MOST_TIMES: usize = if cfg!(test) { 20_000 } else { 8 << 20 };
/// One rule has at most this part of the keys and times.
pub(super) const OF_RULE: usize = 4;

/// The end of the reason, if the rules of a namespace take too much together.
const OF_NAMESPACE: &str = "namespace: the rest is kept for other namespaces";

/// What all rules, the rules of each namespace, and each rule take. A namespace gets more only while it has less than
/// what is still free. So one namespace takes at most half, two take a third each, and something is always free for a
/// namespace that has little.
#[derive(Debug, Default)]
pub(super) struct Room {
    taken: Taken,
    of_namespace: HashMap<Box<str>, Taken>,
    /// By the name of the rule's counters.
    of_rule: HashMap<String, OfRule>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    keys: usize,
    /// The number of times for which the logs of the keys have memory.
    times: usize,
}

#[derive(Debug)]
struct OfRule {
    policy: Arc<str>,
    taken: Taken,
}

impl Room {
    /// Returns the reason, for people, why there is no room for a new key of this rule, or for more times.
    pub(super) fn lacks(&self, rule: &CountedRule, is_new: bool, needs_times: bool) -> Option<String> {
        let of_rule = self.of_rule.get(&rule.counters).map_or_else(Taken::default, |rule| rule.taken);
        let of_namespace = self.of_namespace.get(namespace(&rule.policy)).copied().unwrap_or_default();
        let (keys, times) = ("keys", "times in logs");
        let bounds = [
            (is_new, of_rule.keys, MOST_KEYS / OF_RULE, keys, "rule"),
            (is_new, of_namespace.keys, MOST_KEYS - self.taken.keys, keys, OF_NAMESPACE),
            (needs_times, of_rule.times, MOST_TIMES / OF_RULE, times, "rule"),
            (needs_times, of_namespace.times, MOST_TIMES.saturating_sub(self.taken.times), times, OF_NAMESPACE),
        ];
        let reached = bounds.into_iter().find(|(is_needed, count, most, ..)| *is_needed && count >= most);
        reached.map(|(_, _, most, what, whose)| format!("more than {most} {what} of the {whose}"))
    }

    /// Adds a key of a rule.
    pub(super) fn add_key(&mut self, rule: &CountedRule) {
        let new = || OfRule { policy: rule.policy.clone(), taken: Taken::default() };
        self.of_rule.entry(rule.counters.clone()).or_insert_with(new);
        self.change(&rule.counters, |taken| taken.keys += 1);
    }

    /// Changes the number of times of a key, from `before` to `now`.
    pub(super) fn set_times(&mut self, counters: &str, before: usize, now: usize) {
        if before != now {
            self.change(counters, |taken| taken.times = taken.times - before + now);
        }
    }

    /// Removes a key with this number of times.
    pub(super) fn remove_key(&mut self, counters: &str, times: usize) {
        self.change(counters, |taken| (taken.keys, taken.times) = (taken.keys - 1, taken.times - times));
        if self.of_rule.get(counters).is_some_and(|rule| rule.taken.keys == 0)
            && let Some(rule) = self.of_rule.remove(counters)
        {
            let namespace = namespace(&rule.policy);
            if self.of_namespace.get(namespace).is_some_and(|taken| taken.keys == 0) {
                self.of_namespace.remove(namespace);
            }
        }
    }

    fn change(&mut self, counters: &str, change: impl Fn(&mut Taken)) {
        let Some(rule) = self.of_rule.get_mut(counters) else { return };
        change(&mut rule.taken);
        change(&mut self.taken);
        let namespace = namespace(&rule.policy);
        match self.of_namespace.get_mut(namespace) {
            Some(taken) => change(taken),
            None => change(self.of_namespace.entry(namespace.into()).or_default()),
        }
    }

    /// Returns the number of keys of each rule, by the name of its counters.
    pub(super) fn keys_of_rules(&self) -> HashMap<String, usize> {
        self.of_rule.iter().map(|(counters, rule)| (counters.clone(), rule.taken.keys)).collect()
    }

    /// Returns the policies that have keys.
    pub(super) fn policies(&self) -> impl Iterator<Item = &Arc<str>> {
        self.of_rule.values().map(|rule| &rule.policy)
    }

    /// The number of times of all keys.
    #[cfg(test)]
    pub(super) fn times(&self) -> usize {
        self.taken.times
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn rule(namespace: usize, rule: usize) -> CountedRule {
        let policy = format!("{namespace}/api");
        let counters = format!("{policy}.{rule}");
        CountedRule { counters, policy: policy.into(), stamp: 1, sharers: 1, accepts_limits: false }
    }

    /// Adds keys while there is room, and returns their number.
    fn fill(room: &mut Room, rule: &CountedRule, keys: usize, times: usize) -> usize {
        let fits = (0..keys).take_while(|_| {
            let fits = room.lacks(rule, true, times > 0).is_none();
            if fits {
                room.add_key(rule);
                room.set_times(&rule.counters, 0, times);
            }
            fits
        });
        fits.count()
    }

    proptest! {
        /// Three namespaces ask for any keys and times, of any of their rules. The fourth still gets a part.
        #[test]
        fn a_flood_leaves_room_for_other_namespaces(
            floods in vec((0..3_usize, 0..64_usize, 1..MOST_KEYS, 0..40_usize), 1..40),
        ) {
            let mut room = Room::default();
            let mut added = Vec::new();
            for (namespace, number, keys, times) in floods {
                let rule = rule(namespace, number);
                let count = fill(&mut room, &rule, keys, times);
                added.extend((0..count).map(|_| (rule.counters.clone(), times)));
            }
            prop_assert_eq!(fill(&mut room, &rule(3, 0), MOST_KEYS / 20, MOST_TIMES / MOST_KEYS), MOST_KEYS / 20);
            for _ in 0..MOST_KEYS / 20 {
                room.remove_key(&rule(3, 0).counters, MOST_TIMES / MOST_KEYS);
            }
            for (counters, times) in added {
                room.remove_key(&counters, times);
            }
            prop_assert_eq!((room.taken.keys, room.taken.times), (0, 0));
            prop_assert!(room.of_rule.is_empty() && room.of_namespace.is_empty());
        }
    }
}
