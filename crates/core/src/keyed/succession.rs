//! The change of terms: a successor table is created, and every key moves there while decisions continue.
//!
//! The regions move one by one, under the region's lock. Each key gets a cell in the successor, with unset words. Then
//! the region is closed, so that no new key enters. Then the words are sealed one by one, and the successor's words are
//! computed. A thread that finds sealed words, or does not find a key in a closed region, computes this key's words if
//! no other thread has. All threads compute the same words. Then the thread decides in the successor. So no known key
//! waits, and each decision uses either the old terms or the new terms.

use std::{num::NonZeroUsize, sync::Arc};

use super::{
    Clock, Lineage, Table,
    admission::{Hold, Region},
    book::{Agree, Book, Old, Set},
    cells::is_key,
    histories::{FEW, Histories, Journals, MOST},
    overflow::tag_of,
    zeros,
};
use crate::{
    Terms, Time,
    meter::recorded_until,
    sync::{AtomicU64, Ordering, lock},
};

impl Table {
    /// Puts other terms in force. The returned table has all keys. This table forwards each key to it.
    pub(crate) fn retune(self: &Arc<Self>, clock: Clock<'_>, terms: Terms, max_keys: NonZeroUsize) -> Arc<Self> {
        let mut table = self;
        let guard = loop {
            let guard = lock(&table.retuning);
            match table.successor.get() {
                Some(next) => table = next,
                None => break guard,
            }
        };
        if table.book.terms == terms && table.max_keys == max_keys {
            return Arc::clone(table);
        }
        let next = table.make_successor(clock, terms, max_keys);
        table.move_to(next, clock);
        drop(guard);
        next.reassess(clock());
        Arc::clone(next)
    }

    fn make_successor(&self, clock: Clock<'_>, terms: Terms, max_keys: NonZeroUsize) -> &Arc<Self> {
        let kept = terms.places_in(&self.book.terms);
        let book = Book::new(terms, clock());
        // From here on, no key enters for which the successor has no cell.
        self.capacity.fetch_min(Self::capacity(&book, max_keys), Ordering::Relaxed);
        for region in &self.regions {
            drop(lock(&region.hold));
        }
        let keys = self.lineage.counts.tracked.load(Ordering::Relaxed) + self.overrides.len();
        let lineage = Lineage { retunes: self.lineage.retunes + 1, kept, ..self.lineage.clone() };
        let histories = self.histories_for(&book, &lineage.kept, keys, clock());
        let mut next = Self::with_cells(book, max_keys, keys, &lineage, clock(), histories);
        let now = clock();
        if let Some(histories) = next.histories.as_ref().filter(|_| keys <= FEW) {
            next.journals = Some(Journals::new(recorded_until(histories.longest, now)));
        }
        next.blank = next.book.plain.start_after(&self.book.plain, &self.blank, &next.lineage.kept, now);
        next.overflow_blank =
            next.book.overflow.start_after(&self.book.overflow, &self.overflow_blank, &next.lineage.kept, now);
        for own in next.overrides.values() {
            next.book.set(own.override_index).unset(&own.words);
        }
        self.successor.fill(Arc::new(next));
        self.next()
    }

    fn next(&self) -> &Arc<Self> {
        self.successor.get().expect("the successor is set before a word is sealed or a region is closed")
    }

    /// Moves all keys. The caller must hold `retuning`.
    fn move_to(&self, next: &Self, clock: Clock<'_>) {
        let now = clock().as_nanos();
        next.began.store(now, Ordering::Release);
        self.since.store(now, Ordering::Release);
        for &fingerprint in self.overrides.keys() {
            if !next.overrides.contains_key(&fingerprint) {
                next.place(fingerprint);
                self.lineage.counts.tracked.fetch_add(1, Ordering::Relaxed);
            }
            self.move_key(next, fingerprint);
        }
        for (index, region) in self.regions.iter().enumerate() {
            self.close(next, index, region, clock);
        }
        for &fingerprint in next.overrides.keys() {
            self.move_key(next, fingerprint);
        }
    }

    fn close(&self, next: &Self, index: usize, region: &Region, clock: Clock<'_>) {
        let mut hold = lock(&region.hold);
        let fingerprints = || {
            self.cells
                .round(index, 0)
                .map(|cell| cell.mark.load(Ordering::Relaxed))
                .filter(|&fingerprint| is_key(fingerprint))
        };
        for fingerprint in fingerprints() {
            if next.overrides.contains_key(&fingerprint) {
                self.lineage.counts.tracked.fetch_sub(1, Ordering::Relaxed);
            } else {
                next.place(fingerprint);
            }
        }
        let since = clock();
        region.since.store(since.as_nanos(), Ordering::Release);
        self.move_overflow(next, index, &mut hold, since);
        region.closed.store(true, Ordering::Release);
        for fingerprint in fingerprints() {
            self.move_key(next, fingerprint);
        }
    }

    /// Returns the successor after computing this key's words there. Called only after a region was closed or words
    /// were sealed.
    #[cold]
    pub(super) fn follow(&self, fingerprint: u64) -> &Self {
        let next = self.next();
        self.move_key(next, fingerprint);
        next
    }

    fn move_key(&self, next: &Self, fingerprint: u64) {
        if let Some((set, words)) = next.place_of(fingerprint) {
            if !set.is_unset(words) {
                return;
            }
            // A key that has neither a cell nor separate words is possibly in the overflow. In the successor, it
            // possibly has an override.
            let overflow = if self.place_of(fingerprint).is_none() { self.overflow_words(fingerprint) } else { None };
            let overflow = overflow.as_ref().map(|words| self.old_in_overflow(words, self.closed_at(fingerprint)));
            next.succeed(fingerprint, set, words, || overflow.or_else(|| self.old(fingerprint)));
        }
    }

    fn old(&self, fingerprint: u64) -> Option<Old<'_>> {
        let (set, words) = self.place_of(fingerprint)?;
        let overridden = || Time::from_nanos(self.since.load(Ordering::Acquire));
        let since = if self.overrides.contains_key(&fingerprint) { overridden() } else { self.closed_at(fingerprint) };
        Some(Old {
            set,
            words,
            since,
            began: self.began(),
            // A key that entered later has no earlier admissions.
            is_first: self.lineage.retunes == 0 || self.histories.is_some(),
            histories: self.histories.as_ref().and_then(|histories| histories.get(fingerprint)),
            journals: self.journals(since).map(|journals| (journals, fingerprint)),
        })
    }

    fn began(&self) -> Time {
        Time::from_nanos(self.began.load(Ordering::Acquire))
    }

    /// Keys in the overflow have no history, so requests that their words do not contain count as used.
    fn old_in_overflow<'a>(&'a self, words: &'a [AtomicU64], since: Time) -> Old<'a> {
        let is_first = self.lineage.retunes == 0;
        Old { set: &self.book.overflow, words, since, began: self.began(), is_first, histories: None, journals: None }
    }

    fn succeed<'a>(&self, fingerprint: u64, set: &Set, words: &[AtomicU64], old: impl FnOnce() -> Option<Old<'a>>) {
        let keep = self.histories.as_ref().map(|histories| move |history| histories.keep(fingerprint, history));
        let agree = keep.as_ref().map(|keep| keep as Agree<'_>);
        set.succeed(words, old, &self.lineage.kept, agree);
    }

    /// Returns empty histories for the successor, if its words do not contain all information, or if the histories of
    /// this table are still needed.
    fn histories_for(&self, book: &Book, kept: &[Option<usize>], keys: usize, now: Time) -> Option<Histories> {
        let mut longest = book.longest().max(self.book.longest());
        let mut matters = keys <= FEW || book.forgets(&self.book, kept);
        if let Some(histories) = &self.histories {
            longest = longest.max(histories.longest);
            matters |= now.as_nanos().saturating_sub(self.began.load(Ordering::Acquire)) <= longest;
        }
        (matters && keys <= MOST).then(|| Histories::new(longest))
    }

    fn closed_at(&self, fingerprint: u64) -> Time {
        Time::from_nanos(self.region_of(fingerprint).since.load(Ordering::Acquire))
    }

    /// Returns an upper bound of the usage of a key without a cell, whose region is closed.
    fn overflow_words(&self, fingerprint: u64) -> Option<Vec<AtomicU64>> {
        lock(&self.region_of(fingerprint).hold).overflow.as_ref()?.copy_of(&self.book.overflow, tag_of(fingerprint))
    }

    /// Moves the overflow of a region before the region is closed. Until the region is closed, no thread looks for its
    /// keys in the successor.
    fn move_overflow(&self, next: &Self, index: usize, hold: &mut Hold, since: Time) {
        let Some(overflow) = &hold.overflow else { return };
        let (set, next_set) = (&self.book.overflow, &next.book.overflow);
        let succeed = |words: &[AtomicU64], old: &[AtomicU64]| {
            next_set.clear_unset(words);
            next_set.succeed(words, || Some(self.old_in_overflow(old, since)), &next.lineage.kept, None);
        };
        for (tag, words) in overflow.all(set, since) {
            let mut there = lock(&next.regions[next.cells.region_of_tag(tag)].hold);
            let there = there.overflow.get_or_insert_with(|| next.new_overflow());
            there.receive(next_set, tag, since, |draft| succeed(draft, words));
        }
        let regions = next.cells.regions_of(index, self.cells.regions());
        let same = regions == (index..index + 1) && overflow.places() == next.overflow_places;
        let (rest, all) = (zeros(next_set.words()), zeros(next_set.words()));
        for (bucket, words) in overflow.rests(set, since) {
            succeed(&rest, words);
            if same {
                let mut there = lock(&next.regions[index].hold);
                let there = there.overflow.get_or_insert_with(|| next.new_overflow());
                there.raise(next_set, bucket..bucket + 1, &rest);
            }
            next_set.join(&all, &rest);
        }
        if !same && overflow.rests(set, since).next().is_some() {
            for region in regions {
                let mut there = lock(&next.regions[region].hold);
                let there = there.overflow.get_or_insert_with(|| next.new_overflow());
                there.raise(next_set, 0..there.buckets_in_all(), &all);
            }
        }
        if next.overrides.is_empty() {
            hold.overflow = None; // no thread uses it again
        }
    }
}

impl Drop for Table {
    /// Drops the chain of successors in a loop, because recursion on a long chain overflows the stack.
    fn drop(&mut self) {
        let mut next = self.successor.take();
        while let Some(table) = next {
            next = Arc::into_inner(table).and_then(|mut last| last.successor.take());
        }
    }
}
