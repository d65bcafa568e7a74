//! What a table knows of each key from before its terms were in force, for as long as it matters. Asked only when terms
//! change: no decision waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::meter::Past;

/// How many keys are remembered: up to a kilobyte each. The words of the keys of a larger table tell all that is known of
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
