//! A bounded table with the keys of a shared rule. A forgotten key loses no count, because the store has all counts.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use super::entry::Entry;
use crate::lock::lock;

/// The extra room of a shard. It is used when every key has a request that waits, a question on its way, or debt.
const ROOM: usize = 64;

/// The number of keys that are compared to select one to forget.
const LOOKS: usize = 16;

#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
}

pub(super) type Shard = HashMap<u128, Box<Entry>>;

/// A key that was removed to make room for another key.
pub(super) type Forgotten = Option<(u128, Box<Entry>)>;

impl Table {
    /// A retune keeps the shards, because tasks and requests find the entry of a key by them.
    pub(super) fn new(most_keys: usize) -> Self {
        let shards = if most_keys < 1_024 { 1 } else { 64 };
        Self { shards: (0..shards).map(|_| Mutex::default()).collect() }
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

    /// Finds or creates the entry of a key. Also returns the key that was forgotten for it, if any. None if the table
    /// is full.
    pub(super) fn entry<'a>(
        &self,
        shard: &'a mut Shard,
        hash: u128,
        most_keys: usize,
    ) -> Option<(&'a mut Entry, Forgotten)> {
        let most = most_keys.div_ceil(self.shards.len());
        let mut forgotten = None;
        if !shard.contains_key(&hash) && shard.len() >= most {
            let quiet = shard.iter().filter(|(_, entry)| entry.is_quiet()).take(LOOKS);
            let oldest = quiet.min_by_key(|(_, entry)| entry.used).map(|(hash, _)| *hash);
            forgotten = oldest.and_then(|hash| Some((hash, shard.remove(&hash)?)));
            if forgotten.is_none() && shard.len() >= most + ROOM {
                return None;
            }
        }
        Some((shard.entry(hash).or_default(), forgotten))
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

/// Forgets idle keys without seats, owed units and a valid refusal, unless they are needed. The store has their counts.
pub(super) fn forget_idle(shard: &mut Shard, before: Duration, time: u64, is_needed: impl Fn(&Entry) -> bool) {
    shard.retain(|_, entry| {
        let is_refused = entry.refused.is_some_and(|refused| refused.until > time);
        !entry.is_quiet() || is_refused || entry.used > before || entry.seats() > 0 || is_needed(entry)
    });
}
