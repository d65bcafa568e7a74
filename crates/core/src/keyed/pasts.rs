//! What a table remembers about each key besides its words. Pasts hold what was admitted before the terms came into
//! force; only a change of terms reads and writes them. Trails hold when keys were charged since; for a while after a
//! change, each charge writes them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Time;
use crate::meter::{Past, Trail};

/// How many keys are remembered, with up to two kilobytes each. For a larger table, only the words of the keys are
/// known; what the words do not hold counts as used.
pub(super) const MOST: usize = 1 << 15;

/// This many keys are always remembered: a second change soon afterwards may need what the new terms do not.
pub(super) const FEW: usize = 1 << 12;

/// The past of all limits for each key.
#[derive(Debug)]
pub(super) struct Pasts {
    /// The longest period since they are kept, in nanoseconds: pasts matter for this long.
    pub(super) longest: u64,
    /// Invisible to loom: no ordering depends on this lock.
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

    /// Stores the value unless another thread did, and returns the stored value.
    pub(super) fn keep(&self, mark: u64, past: Arc<[Past]>) -> Arc<[Past]> {
        Arc::clone(self.lock().entry(mark).or_insert(past))
    }

    /// Removes an idle key: if the key comes again, it is a new key.
    pub(super) fn forget(&self, mark: u64) {
        self.lock().remove(&mark);
    }
}

/// The trails of keys, for a while after the terms changed. Either all charges of a key are noted from its first one
/// on, or none.
#[derive(Debug)]
pub(super) struct Trails {
    until: u64,
    /// Invisible to loom: no ordering depends on this lock.
    of_keys: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    trails: HashMap<u64, (u64, Trail)>,
    /// The number of trails so far. Each trail has its own number, so that a running charge never settles in a later
    /// trail of the same key.
    begun: u64,
    /// All room was used at some time. Keys that came later were charged without a note.
    is_full: bool,
}

impl Trails {
    pub(super) fn new(until: u64) -> Self {
        Self { until, of_keys: Mutex::default() }
    }

    /// The time until which charges are noted, in nanoseconds of [`Time`].
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Charges a key at this time or earlier, and notes the charge. All limits of a key are charged or none, so one
    /// trail is enough.
    pub(super) fn noting<T>(
        &self,
        mark: u64,
        (at, cost): (Time, u64),
        charge: impl FnOnce() -> T,
        is_admitted: impl FnOnce(&T) -> bool,
    ) -> T {
        let noted_in = self.with(|noted| noted.note(mark, at, cost));
        let charged = charge();
        if let Some(noted_in) = noted_in {
            let is_admitted = is_admitted(&charged);
            self.with(|noted| match noted.trails.get_mut(&mark) {
                Some((number, trail)) if *number == noted_in => trail.settle(cost, is_admitted),
                _ => {} // forgotten meanwhile
            });
        }
        charged
    }

    pub(super) fn get(&self, mark: u64) -> Option<Trail> {
        self.with(|noted| noted.trails.get(&mark).map(|(_, trail)| trail.clone()))
    }

    /// Removes an idle key: if the key comes again, it is a new key.
    pub(super) fn forget(&self, mark: u64) {
        self.with(|noted| noted.trails.remove(&mark));
    }

    fn with<T>(&self, step: impl FnOnce(&mut Noted) -> T) -> T {
        step(&mut self.of_keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Noted {
    /// Notes a charge. Returns the number of the trail that holds it, if one does.
    fn note(&mut self, mark: u64, at: Time, cost: u64) -> Option<u64> {
        self.is_full |= self.trails.len() >= FEW && !self.trails.contains_key(&mark);
        if self.is_full && !self.trails.contains_key(&mark) {
            return None;
        }
        let begun = &mut self.begun;
        let (number, trail) = self.trails.entry(mark).or_insert_with(|| {
            *begun += 1;
            (*begun, Trail::default())
        });
        trail.note(at, cost);
        Some(*number)
    }
}
