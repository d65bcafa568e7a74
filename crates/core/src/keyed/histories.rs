//! The data that a table stores about each key in addition to its words. Histories contain the admissions before the
//! terms came into force. Only a change of terms reads and writes them. Journals contain the times of charges under the
//! terms in force. For some periods after a change, each charge writes them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    Time,
    meter::{History, Journal},
};

/// The largest number of keys with histories, of up to two kilobytes each. A larger table has only the words of the
/// keys, and unknown usage counts as used.
pub(super) const MOST: usize = 1 << 15;

/// Up to this number of keys, a table always has histories: a second change soon afterwards can need data that the new
/// terms do not need.
pub(super) const FEW: usize = 1 << 12;

/// The history of all limits for each key.
#[derive(Debug)]
pub(super) struct Histories {
    /// The longest period of all terms since the histories were started, in nanoseconds. Histories are needed for this
    /// time.
    pub(super) longest: u64,
    /// Loom does not check this lock: no ordering depends on it.
    of_keys: Mutex<Keys>,
}

type Keys = HashMap<u64, Arc<[History]>>;

impl Histories {
    pub(super) fn new(longest: u64) -> Self {
        Self { longest, of_keys: Mutex::new(HashMap::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.of_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, fingerprint: u64) -> Option<Arc<[History]>> {
        self.lock().get(&fingerprint).cloned()
    }

    /// Stores the value unless another thread has stored one, and returns the stored value.
    pub(super) fn keep(&self, fingerprint: u64, history: Arc<[History]>) -> Arc<[History]> {
        Arc::clone(self.lock().entry(fingerprint).or_insert(history))
    }

    /// Removes an idle key. If a request with this key arrives again, it is a new key.
    pub(super) fn forget(&self, fingerprint: u64) {
        self.lock().remove(&fingerprint);
    }
}

/// The journals of keys, for some periods after the terms changed. Either all charges of a key are recorded, from its
/// first charge on, or none.
#[derive(Debug)]
pub(super) struct Journals {
    until: u64,
    /// Loom does not check this lock: no ordering depends on it.
    of_keys: Mutex<KeyJournals>,
}

#[derive(Debug, Default)]
struct KeyJournals {
    journals: HashMap<u64, (u64, Journal)>,
    /// The number of journals so far. Each journal has its own number, so that a running charge never settles in a later
    /// journal of the same key.
    begun: u64,
    /// Whether there was no room for another journal at some time. Later keys were charged without a journal.
    is_full: bool,
}

impl Journals {
    pub(super) fn new(until: u64) -> Self {
        Self { until, of_keys: Mutex::default() }
    }

    /// Returns the time until which charges are recorded, in nanoseconds of [`Time`].
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Charges a key at this time or earlier, and records the charge. All limits of a key are charged or none, so one
    /// journal is enough.
    pub(super) fn recording<T>(
        &self,
        fingerprint: u64,
        (at, cost): (Time, u64),
        charge: impl FnOnce() -> T,
        is_admitted: impl FnOnce(&T) -> bool,
    ) -> T {
        let noted_in = self.with(|noted| noted.note(fingerprint, at, cost));
        let charged = charge();
        if let Some(noted_in) = noted_in {
            let is_admitted = is_admitted(&charged);
            self.with(|noted| match noted.journals.get_mut(&fingerprint) {
                Some((number, journal)) if *number == noted_in => journal.settle(cost, is_admitted),
                _ => {} // the key was forgotten meanwhile
            });
        }
        charged
    }

    pub(super) fn get(&self, fingerprint: u64) -> Option<Journal> {
        self.with(|noted| noted.journals.get(&fingerprint).map(|(_, journal)| journal.clone()))
    }

    /// Removes an idle key. If a request with this key arrives again, it is a new key.
    pub(super) fn forget(&self, fingerprint: u64) {
        self.with(|noted| noted.journals.remove(&fingerprint));
    }

    fn with<T>(&self, step: impl FnOnce(&mut KeyJournals) -> T) -> T {
        step(&mut self.of_keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl KeyJournals {
    /// Records a charge. Returns the number of the journal that contains it, if there is room for the key.
    fn note(&mut self, fingerprint: u64, at: Time, cost: u64) -> Option<u64> {
        self.is_full |= self.journals.len() >= FEW && !self.journals.contains_key(&fingerprint);
        if self.is_full && !self.journals.contains_key(&fingerprint) {
            return None;
        }
        let begun = &mut self.begun;
        let (number, journal) = self.journals.entry(fingerprint).or_insert_with(|| {
            *begun += 1;
            (*begun, Journal::default())
        });
        journal.note(at, cost);
        Some(*number)
    }
}
