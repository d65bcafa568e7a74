//! A store in the memory of one process: the model, with a lock around it. It serves tests, and programs that hand out
//! seats themselves.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use crate::{
    error::StoreError,
    key::Key,
    model::{Transition, take},
    take::{Reply, Take},
    value::Value,
};

/// With fewer keys than this, the store does not look for keys to forget.
const FEW: usize = 1_024;

/// A store in memory. It forgets keys that are back at full credit.
#[derive(Debug, Default)]
pub struct MemoryStore {
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    values: HashMap<Key, (Value, u64)>,
    /// The number of keys above which the store looks for keys to forget.
    enough: usize,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides at the time that `clock` returns, in microseconds since the Unix epoch. The clock is read under the
    /// lock, so that decisions are in the order of their times.
    ///
    /// # Errors
    ///
    /// [`StoreError::Cost`].
    pub fn take(&self, key: &Key, question: &Take<'_>, clock: impl FnOnce() -> u64) -> Result<Reply, StoreError> {
        let encoded = question.encode().ok_or(StoreError::Cost)?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock();
        let stored = keys.values.get(key).filter(|(_, full_at)| *full_at > now).map(|(value, _)| value);
        let Transition { answer, value, full_at } = take(stored, &encoded, now);
        if full_at > now {
            keys.values.insert(key.clone(), (value, full_at));
        } else {
            keys.values.remove(key);
        }
        keys.forget(now);
        drop(keys);
        answer.reply(&encoded).ok_or(StoreError::Garbled)
    }

    /// Forgets the count and the ban of a key.
    pub fn forget(&self, key: &Key) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).values.remove(key);
    }
}

impl Keys {
    /// Forgets keys at full credit. It checks all keys when their number has doubled, so that a question costs little
    /// on average.
    fn forget(&mut self, now: u64) {
        if self.values.len() > self.enough.max(FEW) {
            self.values.retain(|_, (_, full_at)| *full_at > now);
            self.enough = 2 * self.values.len();
        }
    }
}
