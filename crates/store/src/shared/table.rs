//! What a program knows about each key of a shared rule. The table is bounded. To forget a key loses no count, because
//! the store has all of them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use super::{answer::Decision, demand::Demand, hand::Hand};
use crate::{client::lock, take::Level, value::Value};

/// Beyond its part of the keys, a shard has room for this many whose requests wait.
const ROOM: usize = 64;

/// How many keys it looks at to find one to forget.
const LOOKS: usize = 16;

#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
}

pub(super) type Shard = HashMap<u128, Box<Entry>>;

/// A key that made room for another.
pub(super) type Forgotten = Option<(u128, Box<Entry>)>;

/// One key.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) set: usize,
    pub(super) hand: Hand,
    pub(super) waiting: VecDeque<Waiter>,
    /// Whether a task asks the store for this key. There is one at most.
    pub(super) asks: bool,
    /// If that task waits for a moment: wakes it for a request that does not.
    pub(super) sleeps: Option<Arc<Notify>>,
    pub(super) refused: Option<Refused>,
    pub(super) level: Option<Level>,
    /// How many answers had been missed when the level came.
    pub(super) level_breaks: u64,
    /// What the store does not know yet.
    pub(super) owed: u32,
    pub(super) demand: Demand,
    /// No seats are asked for before.
    pub(super) refill_after: Duration,
    /// What was counted while the store was lost, and in which loss.
    pub(super) local: Option<(u64, Value)>,
    pub(super) used: Duration,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) cost: u32,
    /// Until when it may go.
    pub(super) latest: Duration,
    /// Whether it may wait for a slot, and not only for the store.
    pub(super) is_patient: bool,
    pub(super) sender: oneshot::Sender<Decision>,
}

/// The store refused a cost. Until then it is useless to ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) cost: u32,
    /// The store's time.
    pub(super) until: u64,
    /// Until when this program does not ask, so that not all programs ask at once.
    pub(super) asks_at: u64,
}

impl Entry {
    /// Whether it can be forgotten.
    fn is_quiet(&self) -> bool {
        !self.asks && self.waiting.is_empty() && self.owed == 0
    }
}

impl Table {
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
        // The hash is uniform.
        self.shard(usize::try_from(hash >> 96).unwrap_or_default())
    }

    /// The entry of a key, and one that was forgotten for it. None if there is no room.
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

/// Forgets idle keys without seats, debt or a refusal in force; the store knows the rest.
pub(super) fn forget_idle(shard: &mut Shard, before: Duration, time: u64) {
    shard.retain(|_, entry| {
        let is_refused = entry.refused.is_some_and(|refused| refused.until > time);
        !entry.is_quiet() || is_refused || entry.used > before || entry.hand.units() > 0
    });
}
