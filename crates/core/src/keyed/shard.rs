//! A part of the table, behind one lock.

use std::collections::HashMap;
use std::sync::Arc;

use super::book::{Book, Levels};
use crate::Time;
use crate::rule::{KeyCharge, RuleAdmitted, RuleRefused, Tightest};
use crate::supply::SET_BACK;

/// Keys and their levels. Entries lie in a row, so that a hand can go round them.
#[derive(Debug)]
pub(super) struct Shard {
    book: Arc<Book>,
    places: HashMap<Arc<[u8]>, usize>,
    entries: Vec<Entry>,
    hand: usize,
    /// The latest time at which keys were found idle. A key that comes in starts full at that time and no sooner: it may
    /// have been forgotten then, and a thread that read the clock before must not find it fuller than it was.
    swept: Time,
}

#[derive(Debug)]
struct Entry {
    key: Arc<[u8]>,
    override_index: Option<usize>,
    levels: Levels,
}

impl Shard {
    pub(super) fn new(book: Arc<Book>) -> Self {
        Self { book, places: HashMap::new(), entries: Vec::new(), hand: 0, swept: Time::default() }
    }

    /// None if the key is not there.
    pub(super) fn charge_known(
        &mut self,
        now: Time,
        key: &[u8],
        cost: u64,
    ) -> Option<Result<RuleAdmitted, RuleRefused>> {
        let entry = &mut self.entries[*self.places.get(key)?];
        Some(self.book.charge(entry.override_index, &mut entry.levels, now, cost, false))
    }

    /// Brings the key in unless another thread just did; none if there is no room for it.
    pub(super) fn charge_or_insert(
        &mut self,
        now: Time,
        key: &[u8],
        cost: u64,
        take_room: impl Fn(bool) -> bool,
    ) -> Option<Result<RuleAdmitted, RuleRefused>> {
        if let Some(decision) = self.charge_known(now, key, cost) {
            return Some(decision);
        }
        let override_index = self.book.terms().override_of(key);
        let mut levels = self.newcomer(override_index, now);
        let decision = self.book.charge(override_index, &mut levels, now, cost, false);
        if decision.is_err() {
            // More than the burst. Nothing to remember.
            return Some(decision);
        }
        if !take_room(override_index.is_some()) {
            return None;
        }
        let key: Arc<[u8]> = key.into();
        self.places.insert(Arc::clone(&key), self.entries.len());
        self.entries.push(Entry { key, override_index, levels });
        Some(decision)
    }

    fn newcomer(&mut self, override_index: Option<usize>, now: Time) -> Levels {
        if self.swept > now.saturating_add(SET_BACK) {
            self.swept = now;
        }
        self.book.idle_at(override_index, self.swept)
    }

    /// What a charge would be told; none if the overflow has to be asked.
    pub(super) fn ask(
        &mut self,
        now: Time,
        key: &[u8],
        cost: u64,
        has_room: bool,
    ) -> Option<Result<Tightest, RuleRefused>> {
        if let Some(&place) = self.places.get(key) {
            let entry = &mut self.entries[place];
            return Some(self.book.ask(entry.override_index, &mut entry.levels, now, cost));
        }
        let override_index = self.book.terms().override_of(key);
        if !has_room && override_index.is_none() {
            return None;
        }
        let mut levels = self.newcomer(override_index, now);
        Some(self.book.ask(override_index, &mut levels, now, cost))
    }

    /// Gives back what a key was charged. A key that was forgotten meanwhile was refilled before.
    pub(super) fn refund(&mut self, key: &[u8], charge: &KeyCharge, clock: impl Fn() -> Time) {
        if let Some(&place) = self.places.get(key) {
            let entry = &mut self.entries[place];
            self.book.refund(entry.override_index, &mut entry.levels, charge, clock());
        }
    }

    pub(super) fn retune(&mut self, book: &Arc<Book>, clock: impl Fn() -> Time) {
        let since = clock();
        for entry in &mut self.entries {
            let override_index = book.terms().override_of(&entry.key);
            let overrides = (entry.override_index, override_index);
            entry.levels = book.carry_over(&self.book, overrides, &entry.levels, since);
            entry.override_index = override_index;
        }
        self.book = Arc::clone(book);
    }

    /// Looks at no more than `most` entries, from where the last sweep stopped, and forgets those that are idle. Returns
    /// how many were looked at, how many were forgotten, and whether the end was reached.
    pub(super) fn sweep(&mut self, now: Time, most: usize) -> (usize, usize, bool) {
        let (mut looked_at, mut forgotten) = (0, 0);
        self.swept = self.swept.max(now);
        while looked_at < most && self.hand < self.entries.len() {
            looked_at += 1;
            let entry = &self.entries[self.hand];
            if self.book.is_idle(entry.override_index, &entry.levels, now) {
                forgotten += 1;
                self.forget(self.hand);
            } else {
                self.hand += 1;
            }
        }
        let finished = self.hand >= self.entries.len();
        if finished {
            self.hand = 0;
        }
        (looked_at, forgotten, finished)
    }

    fn forget(&mut self, place: usize) {
        let entry = self.entries.swap_remove(place);
        self.places.remove(&entry.key);
        if let Some(moved) = self.entries.get(place) {
            *self.places.get_mut(&moved.key).expect("every entry has its place") = place;
        }
    }
}
