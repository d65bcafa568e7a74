//! What a table knows of each key from before its terms were in force, for as long as it matters, and when keys were
//! charged since, for a while. Asked only when terms change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Time;
use crate::meter::{Past, Trail};

/// How many keys are remembered: up to two kilobytes each. The words of the keys of a larger table tell all that is known of
/// them, and what they do not tell counts as used up.
pub(super) const MOST: usize = 1 << 15;

/// So many keys are remembered whatever changes: if another change follows soon, it may ask for what these terms do not.
pub(super) const FEW: usize = 1 << 12;

/// The pasts of all limits of each key.
#[derive(Debug)]
pub(super) struct Pasts {
    /// The longest period since they are kept, in nanoseconds: for so long they matter.
    pub(super) longest: u64,
    /// Loom need not see it: nothing that it orders is done under this lock.
    of_keys: Mutex<Keys>,
}

type Keys = HashMap<u64, Arc<[Past]>>;

impl Pasts {
    pub(super) fn new(longest: u64) -> Self {
        Self { longest, of_keys: Mutex::new(HashMap::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.of_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, mark: u64) -> Option<Arc<[Past]>> {
        self.lock().get(&mark).cloned()
    }

    /// Keeps it unless another thread did, and returns what is kept.
    pub(super) fn keep(&self, mark: u64, past: Arc<[Past]>) -> Arc<[Past]> {
        Arc::clone(self.lock().entry(mark).or_insert(past))
    }

    /// The key was idle and goes: if it comes again, it is another.
    pub(super) fn forget(&self, mark: u64) {
        self.lock().remove(&mark);
    }
}

/// The trails of keys, for a while after the terms changed. A key is noted from its first charge on, or not at all.
#[derive(Debug)]
pub(super) struct Trails {
    until: u64,
    /// Loom need not see it, as above.
    of_keys: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    trails: HashMap<u64, Trail>,
    /// There were as many as there is room for. Keys that came later were charged without a note.
    is_full: bool,
}

impl Trails {
    pub(super) fn new(until: u64) -> Self {
        Self { until, of_keys: Mutex::default() }
    }

    /// Until when charges are noted, in nanoseconds of [`Time`].
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Charges a key at this time or earlier, and notes it. All its limits are charged or none, so one trail is enough.
    pub(super) fn noting<T>(
        &self,
        mark: u64,
        (at, cost): (Time, u64),
        charge: impl FnOnce() -> T,
        is_admitted: impl FnOnce(&T) -> bool,
    ) -> T {
        let is_noted = self.with(|noted| {
            if noted.trails.len() >= FEW && !noted.trails.contains_key(&mark) {
                noted.is_full = true;
            }
            if noted.is_full {
                return noted.trails.get_mut(&mark).map(|trail| trail.note(at, cost)).is_some();
            }
            noted.trails.entry(mark).or_default().note(at, cost);
            true
        });
        let charged = charge();
        if is_noted {
            let is_admitted = is_admitted(&charged);
            self.with(|noted| noted.trails.get_mut(&mark).map(|trail| trail.settle(cost, is_admitted)));
        }
        charged
    }

    pub(super) fn get(&self, mark: u64) -> Option<Trail> {
        self.with(|noted| noted.trails.get(&mark).cloned())
    }

    /// The key was idle and goes: if it comes again, it is another.
    pub(super) fn forget(&self, mark: u64) {
        self.with(|noted| noted.trails.remove(&mark));
    }

    fn with<T>(&self, step: impl FnOnce(&mut Noted) -> T) -> T {
        step(&mut self.of_keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
