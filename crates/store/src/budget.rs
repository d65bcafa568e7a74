//! The bound of the keys that all shared rules of a program track together.
//!
//! Each rule has a bound of its own, `maxKeys`, but nothing bounds the number of rules. If the rules track too many keys
//! together, the rule with the most keys forgets one for each new key of any rule. So a flood of keys of one rule takes no
//! room from a rule with fewer keys.

use std::{
    cmp::Reverse,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::{lock::lock, store_rule::StoreRule};

/// The keys that all rules track together, if no rule has a larger `maxKeys`.
const MOST_KEYS: usize = 131_072;

/// The part of the bound that is added for keys that cannot be forgotten: first for those of all rules, and then once more
/// for those of rules with few keys.
const PART: usize = 16;

/// Bounds the keys of all shared rules of a program. All its store clients have the same budget.
#[derive(Debug)]
pub struct KeyBudget {
    /// The bound, if no rule has a larger one of its own.
    least: usize,
    /// The number of keys that all rules can track together.
    most: AtomicUsize,
    /// The number of keys in all tables. Threads add keys at the same time, so it can be larger than the bound by the number
    /// of threads.
    tracked: AtomicUsize,
    /// The number of rules in force.
    in_force: AtomicUsize,
    rules: Mutex<Vec<Weak<dyn StoreRule>>>,
}

impl Default for KeyBudget {
    fn default() -> Self {
        Self::new(MOST_KEYS)
    }
}

impl KeyBudget {
    /// A budget of this many keys, or of the largest bound of a rule if that is larger. While keys cannot be forgotten,
    /// because their requests wait, their question is on its way or they have debt, there can be an eighth more.
    pub fn new(least: usize) -> Self {
        let most = least.into();
        Self { least, most, tracked: 0.into(), in_force: 0.into(), rules: Mutex::default() }
    }

    /// The number of keys that all rules track now.
    pub fn tracked(&self) -> usize {
        self.tracked.load(Relaxed)
    }

    pub(crate) fn add_rule(&self, rule: Weak<dyn StoreRule>) {
        lock(&self.rules).push(rule);
        self.resize();
    }

    /// Computes the bound of the rules in force. If it is lower than before, the rules with the most keys forget some.
    /// Otherwise, a rule without keys would get none. The caller must hold no lock of a table.
    pub(crate) fn resize(&self) {
        let rules = self.rules();
        let largest = rules.iter().map(|rule| rule.most_keys()).max();
        self.most.store(self.least.max(largest.unwrap_or(0)), Relaxed);
        self.in_force.store(rules.len(), Relaxed);
        drop(rules);
        while self.make_room() {}
    }

    /// Returns true if a rule that has this many keys can add one.
    pub(crate) fn has_room(&self, keys: usize) -> bool {
        let (tracked, most) = (self.tracked(), self.most.load(Relaxed));
        let extra = (most / PART).max(1);
        tracked < most + extra || (keys < self.few() && tracked < most + 2 * extra)
    }

    /// The number of keys up to which a rule has few keys.
    fn few(&self) -> usize {
        (self.most.load(Relaxed) / PART / self.in_force.load(Relaxed).max(1)).max(1)
    }

    /// Counts a key that was added.
    pub(crate) fn count_added(&self) {
        self.tracked.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_removed(&self, keys: usize) {
        self.tracked.fetch_sub(keys, Relaxed);
    }

    /// If there are too many keys, lets the rule with the most keys forget one, or one of the next two rules, unless it has
    /// few keys. Returns true if a key was forgotten. The caller must hold no lock of a table.
    pub(crate) fn make_room(&self) -> bool {
        if self.tracked() <= self.most.load(Relaxed) {
            return false;
        }
        let mut rules = self.rules();
        rules.sort_by_cached_key(|rule| Reverse(rule.keys()));
        rules.iter().take(3).filter(|rule| rule.keys() > self.few()).any(|rule| rule.make_room())
    }

    /// The rules in force. Forgets those that have ended. A rule can end when one of these handles is dropped, so that must
    /// not happen below a lock.
    fn rules(&self) -> Vec<Arc<dyn StoreRule>> {
        let mut rules = lock(&self.rules);
        rules.retain(|rule| rule.strong_count() > 0);
        rules.iter().filter_map(Weak::upgrade).collect()
    }
}
