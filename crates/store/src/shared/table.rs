//! A bounded table with the keys of a shared rule. A forgotten key loses no count, because the store has all counts.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{entry::Entry, request::Clocks};
use crate::{budget::KeyBudget, lock::lock};

/// The extra room of a shard. It is used when every key has a request that waits, a question on its way, or debt.
const SPARE: usize = 64;

/// The number of keys that are compared to select one to forget.
const LOOKS: usize = 16;

#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
    /// The number of keys.
    keys: AtomicUsize,
    budget: Arc<KeyBudget>,
}

pub(super) type Shard = HashMap<u128, Box<Entry>>;

/// What the room for a key has cost.
#[derive(Debug, Default)]
#[must_use = "the seats of a forgotten key go back to the store, and another rule can have to make room"]
pub(super) struct Room {
    /// The key of this table that was removed.
    pub(super) forgotten: Option<Forgotten>,
    /// True if the key was added. Then all tables together can have too many keys.
    pub(super) is_new: bool,
}

/// A key that was removed to make room for another key.
pub(super) type Forgotten = (u128, Box<Entry>);

impl Drop for Table {
    fn drop(&mut self) {
        self.budget.count_removed(self.len());
    }
}

impl Table {
    /// A retune keeps the shards, because tasks and requests find the entry of a key by them.
    pub(super) fn new(most_keys: usize, budget: Arc<KeyBudget>) -> Self {
        let shards = if most_keys < 1_024 { 1 } else { 64 };
        Self { shards: (0..shards).map(|_| Mutex::default()).collect(), keys: AtomicUsize::new(0), budget }
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[index % self.shards.len()])
    }

    pub(super) fn shard_of(&self, hash: u128) -> MutexGuard<'_, Shard> {
        // Hashes are uniform, so any bits select the shard.
        self.shard(usize::try_from(hash >> 96).unwrap_or_default())
    }

    /// Finds or creates the entry of a key. None if there is no room.
    pub(super) fn entry<'a>(
        &self,
        shard: &'a mut Shard,
        hash: u128,
        most_keys: usize,
    ) -> Option<(&'a mut Entry, Room)> {
        let mut room = Room::default();
        if !shard.contains_key(&hash) {
            let most = most_keys.div_ceil(self.shards.len());
            let has_room = self.budget.has_room(self.len());
            if shard.len() >= most || !has_room {
                let random = usize::try_from(hash >> 64).unwrap_or_default();
                room.forgotten = self.forget_one(shard, random);
                if room.forgotten.is_none() && !has_room {
                    room.forgotten = self.forget_one_elsewhere(random);
                }
            }
            if room.forgotten.is_none() && (shard.len() >= most + SPARE || !has_room) {
                return None;
            }
            self.count_added();
            room.is_new = true;
        }
        Some((shard.entry(hash).or_default(), room))
    }

    /// Finds or creates the entry of a key with debt. There is always room for it.
    pub(super) fn entry_of_debt<'a>(&self, shard: &'a mut Shard, hash: u128) -> &'a mut Entry {
        if !shard.contains_key(&hash) {
            self.count_added();
        }
        shard.entry(hash).or_default()
    }

    /// Compares some keys from a random place of the shard, and removes the one that was used least recently. Keys that
    /// must not be forgotten stay.
    pub(super) fn forget_one(&self, shard: &mut Shard, random: usize) -> Option<Forgotten> {
        let first = random % shard.len().max(1);
        let from_first = shard.iter().skip(first).chain(shard.iter().take(first));
        let quiet = from_first.filter(|(_, entry)| entry.is_quiet()).take(LOOKS);
        let oldest = quiet.min_by_key(|(_, entry)| entry.used()).map(|(hash, _)| *hash)?;
        let forgotten = shard.remove(&oldest).map(|entry| (oldest, entry));
        self.count_removed(usize::from(forgotten.is_some()));
        forgotten
    }

    /// As [`forget_one`](Self::forget_one), from other shards of a table with few keys, in which a shard can be empty. The
    /// caller holds the lock of a shard, so this waits for no other lock.
    fn forget_one_elsewhere(&self, random: usize) -> Option<Forgotten> {
        let has_few = self.has_few();
        let shards = self.shards.iter().filter(|_| has_few);
        shards.filter_map(|shard| shard.try_lock().ok()).find_map(|mut shard| self.forget_one(&mut shard, random))
    }

    /// Forgets idle keys without seats, owed units and a valid refusal, unless they are needed. The store has their counts.
    pub(super) fn forget_idle(
        &self,
        shard: &mut Shard,
        before: Duration,
        clocks: Clocks,
        is_needed: impl Fn(&Entry) -> bool,
    ) {
        let keys = shard.len();
        shard.retain(|_, entry| {
            let is_refused = entry.refused.is_some_and(|refused| !refused.rest(clocks).is_zero());
            !entry.is_quiet() || is_refused || entry.used() > before || entry.seats() > 0 || is_needed(entry)
        });
        self.count_removed(keys - shard.len());
    }

    /// Returns true if the table has so few keys that a shard can be empty.
    pub(super) fn has_few(&self) -> bool {
        self.len() < LOOKS * self.shards.len()
    }

    pub(super) fn len(&self) -> usize {
        self.keys.load(Relaxed)
    }

    fn count_added(&self) {
        self.keys.fetch_add(1, Relaxed);
        self.budget.count_added();
    }

    fn count_removed(&self, keys: usize) {
        self.keys.fetch_sub(keys, Relaxed);
        self.budget.count_removed(keys);
    }
}
