//! What a table remembers of each key besides its words. Pasts hold what was admitted before the terms were in force; only a
//! change of terms reads and writes them. Trails hold when keys were charged since; for a while after a change, each charge
//! writes them.

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
    trails: HashMap<u64, (u64, Trail)>,
    /// Numbers the trails, so that a charge in flight never settles in a later trail of the same key.
    begun: u64,
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

    /// The key was idle and goes: if it comes again, it is another.
    pub(super) fn forget(&self, mark: u64) {
        self.with(|noted| noted.trails.remove(&mark));
    }

    fn with<T>(&self, step: impl FnOnce(&mut Noted) -> T) -> T {
        step(&mut self.of_keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Noted {
    /// The number of the trail in which it is noted, if it is.
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
