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

use crate::lock::lock;

/// The keys that all rules track together, if no rule has a larger `maxKeys`.
const MOST_KEYS: usize = 131_072;

/// The part of the bound that is added for keys that cannot be forgotten: first for those of all rules, and then once more
/// for those of rules with few keys.
const PART: usize = 16;

/// A rule with a table of keys.
pub(crate) trait KeyTable: Send + Sync {
    /// The number of keys.
    fn keys(&self) -> usize;

    /// The rule's own bound.
    fn most_keys(&self) -> usize;

    /// Forgets a key that was not used for long. Returns false if none can be forgotten. The caller must hold no lock.
    fn make_room(&self) -> bool;
}

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
    /// The number of rules.
    rules: AtomicUsize,
    tables: Mutex<Vec<Weak<dyn KeyTable>>>,
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
        Self { least, most, tracked: 0.into(), rules: 0.into(), tables: Mutex::default() }
    }

    /// The number of keys that all rules track now.
    pub fn tracked(&self) -> usize {
        self.tracked.load(Relaxed)
    }

    /// Adds a rule.
    pub(crate) fn add(&self, table: Weak<dyn KeyTable>) {
        lock(&self.tables).push(table);
        self.resize();
    }

    /// Computes the bound of the rules in force. If it is lower than before, the rules with the most keys forget some:
    /// otherwise a rule without keys would get none. The caller must hold no lock of a table.
    pub(crate) fn resize(&self) {
        lock(&self.tables).retain(|table| table.strong_count() > 0);
        let tables = self.tables();
        let largest = tables.iter().map(|table| table.most_keys()).max();
        self.most.store(self.least.max(largest.unwrap_or(0)), Relaxed);
        self.rules.store(tables.len(), Relaxed);
        drop(tables);
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
        (self.most.load(Relaxed) / PART / self.rules.load(Relaxed).max(1)).max(1)
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
        let mut tables = self.tables();
        tables.sort_by_cached_key(|table| Reverse(table.keys()));
        tables.iter().take(3).filter(|table| table.keys() > self.few()).any(|table| table.make_room())
    }

    /// The tables. A rule can end when one of these handles is dropped, so that must not happen below a lock.
    fn tables(&self) -> Vec<Arc<dyn KeyTable>> {
        lock(&self.tables).iter().filter_map(Weak::upgrade).collect()
    }
}
