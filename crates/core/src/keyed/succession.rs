//! The change of terms: a successor table is created, and every key moves there while decisions continue.
//!
//! The regions move one by one, under the region's lock. Each key gets a cell in the successor, with unset words. Then
//! the region is closed, so that no new key enters. Then the words are sealed one by one, and the successor's words are
//! computed. A thread that finds sealed words, or does not find a key in a closed region, computes this key's words if
//! no other thread has. All threads compute the same words. Then the thread decides in the successor. So no known key
//! waits, and each decision uses either the old terms or the new terms.
//!
//! When all keys have moved, the earlier tables that handles still have lead to the successor directly: see `chain`.

use std::{num::NonZeroUsize, sync::Arc};

use super::{
    Clock, Lineage, Table,
    admission::{Hold, Region},
    book::{Agree, Book, MeterSet, Old},
    cells::is_key,
    histories::{FEW, Histories, Journals, MOST},
    overflow::tag_of,
    zeros,
};
use crate::{
    Terms, Time,
    chain::{Chain, Replaced},
    meter::recorded_until,
    sync::{AtomicU64, Ordering, lock},
};

impl Table {
    /// Puts other terms in force. The returned table has all keys. This table forwards each key to it.
    pub(crate) fn retune(self: &Arc<Self>, clock: Clock<'_>, terms: Terms, max_keys: NonZeroUsize) -> Arc<Self> {
        let mut table = Arc::clone(self);
        let next = loop {
            let guard = lock(&table.retuning);
            if let Some(next) = table.chain.successor() {
                drop(guard);
                table = next;
            } else if table.book.terms == terms && table.max_keys == max_keys {
                drop(guard);
                return table;
            } else {
                let next = table.make_successor(clock, terms, max_keys);
                table.move_to(&next, clock);
                table.chain.shorten(&next);
                break next;
            }
        };
        next.reassess(clock());
        next
    }

    fn make_successor(self: &Arc<Self>, clock: Clock<'_>, terms: Terms, max_keys: NonZeroUsize) -> Arc<Self> {
        let kept = terms.places_in(&self.book.terms);
        let book = Book::new(terms, clock());
        // From here on, no key enters for which the successor has no cell.
        self.capacity.fetch_min(Self::capacity(&book, max_keys), Ordering::Relaxed);
        for region in &self.regions {
            drop(lock(&region.hold));
        }
        let keys = self.lineage.counts.tracked.load(Ordering::Relaxed) + self.overrides.len();
        let is_bucketless = |place: usize| self.lineage.bucketless[place] && !self.book.is_bucket(place);
        let bucketless = kept.iter().map(|place| place.is_none_or(is_bucketless)).collect();
        let lineage = Lineage { retunes: self.lineage.retunes + 1, kept, bucketless, ..self.lineage.clone() };
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
        next.chain = Chain::after(self);
        let next = Arc::new(next);
        self.chain.set(&next);
        next
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

    /// Returns the successor after computing this key's words there, or a later table, which has all keys. Called only
    /// after a region was closed or words were sealed.
    #[cold]
    pub(super) fn follow(&self, fingerprint: u64) -> Arc<Self> {
        let next =
            self.chain.successor().expect("the successor is linked before a word is sealed or a region is closed");
        if next.lineage.retunes == self.lineage.retunes + 1 {
            self.move_key(&next, fingerprint);
        }
        next
    }

    fn move_key(&self, next: &Self, fingerprint: u64) {
        if let Some((set, words)) = next.place_of(fingerprint) {
            if !set.is_unset(words) {
                return;
            }
            // A key that has neither a cell nor separate words may be in the overflow. In the successor, it may have an
            // override.
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
            bucketless: &self.lineage.bucketless,
            histories: self.histories.as_ref().and_then(|histories| histories.get(fingerprint)),
            journals: self.journals(since).map(|journals| (journals, fingerprint)),
        })
    }

    fn began(&self) -> Time {
        Time::from_nanos(self.began.load(Ordering::Acquire))
    }

    /// Keys in the overflow have no history, so requests that their words do not contain count as used.
    fn old_in_overflow<'a>(&'a self, words: &'a [AtomicU64], since: Time) -> Old<'a> {
        Old {
            set: &self.book.overflow,
            words,
            since,
            began: self.began(),
            is_first: self.lineage.retunes == 0,
            bucketless: &self.lineage.bucketless,
            histories: None,
            journals: None,
        }
    }

    fn succeed<'a>(
        &self,
        fingerprint: u64,
        set: &MeterSet,
        words: &[AtomicU64],
        old: impl FnOnce() -> Option<Old<'a>>,
    ) {
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
        // An idle key of a bucket may have used a part of a window.
        for (tag, words) in overflow.all() {
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

impl Replaced for Table {
    fn retunes(&self) -> u64 {
        self.lineage.retunes
    }

    fn chain(&self) -> &Chain<Self> {
        &self.chain
    }

    fn chain_mut(&mut self) -> &mut Chain<Self> {
        &mut self.chain
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{num::NonZeroUsize, sync::Arc, time::Duration};

    use super::Table;
    use crate::{Quota, Strategy, Terms, Time, keyed::Request};

    const NOW: Time = Time::from_nanos(1_700_000_000_000_000_000);

    fn terms(requests: u64) -> Terms {
        let quota = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
        let limit = |requests| [("limit", quota(requests).expect("valid"))];
        Terms::new(limit(requests))
            .and_then(|terms| terms.with_override([b"own".to_vec()], limit(20_000)))
            .expect("valid")
    }

    fn keys(max: usize) -> NonZeroUsize {
        NonZeroUsize::new(max).expect("not zero")
    }

    fn charge(table: &Table, key: &[u8]) {
        table.charge(key, NOW, 1, &|| NOW).expect("there is room");
    }

    fn left(table: &Table, key: &[u8]) -> u64 {
        table.peek(NOW, key, 1).expect("there is room").standing.remaining()
    }

    /// Retunes often, while a handle of the first table charges or is idle. Every charge must be counted, and only the
    /// first and the last table may stay in memory.
    #[test]
    fn an_old_handle_keeps_no_tables_in_between() {
        const RETUNES: usize = 10_000;
        for charges in [true, false] {
            let old = Arc::new(Table::new(NOW, terms(20_000), keys(1)));
            let (mut newest, mut tables) = (Arc::clone(&old), Vec::new());
            for round in 1..=RETUNES {
                if charges {
                    [b"ann".as_slice(), b"overflow", b"own"].iter().for_each(|key| charge(&old, key));
                }
                newest = newest.retune(&|| NOW, terms(20_000), keys(1 + round % 2));
                tables.push(Arc::downgrade(&newest));
                tables.retain(|table| table.strong_count() > 0);
                assert_eq!(tables.len(), 1, "after {round} retunes, in addition to the first table");
            }
            assert!(Arc::ptr_eq(&old.chain.successor().expect("retuned"), &newest), "one step");
            let used = if charges { RETUNES as u64 } else { 0 };
            for key in [b"ann".as_slice(), b"overflow", b"own"] {
                assert_eq!(left(&newest, key), 20_000 - used);
                assert_eq!(left(&old, key), 20_000 - used, "the old handle reaches the same words");
            }
            let capacity = newest.stats().capacity;
            assert_eq!((old.stats().capacity, old.survey(NOW, 9)), (capacity, newest.survey(NOW, 9)));
        }
    }

    /// A key that entered a later table, and a refund of a charge in a table that is skipped now.
    #[test]
    fn an_old_handle_finds_new_keys_and_leaves_charges_of_skipped_tables() {
        let first = Arc::new(Table::new(NOW, terms(10), keys(9)));
        let second = first.retune(&|| NOW, terms(11), keys(9));
        charge(&second, b"ann");
        let request = Request { now: NOW, cost: 2, when: crate::meter::When::Now };
        let charged =
            second.take(second.lineage.fingerprint_of(b"ann"), &request, &|| NOW).expect("there is room").charge;
        let third = second.retune(&|| NOW, terms(12), keys(9));
        let used = left(&third, b"ann");
        first.refund(b"ann", &charged, &|| NOW);
        assert_eq!((left(&first, b"ann"), left(&third, b"ann")), (used, used));
        charge(&first, b"ann");
        assert_eq!(left(&second, b"ann"), used - 1);
        first.credit(b"ann", 1, &|| NOW);
        assert_eq!(left(&third, b"ann"), used);
    }

    /// A key in the overflow is idle under a bucket, and has used a part of the window that begins with the change.
    #[test]
    fn an_idle_key_in_the_overflow_keeps_what_it_used_of_a_window() {
        let later = NOW.saturating_add(Duration::from_secs(5));
        for strategy in [Strategy::FixedWindow, Strategy::SlidingWindowCounter, Strategy::SlidingWindowLog] {
            let terms = |strategy, seconds| {
                let quota = Quota::new(strategy, 10, Duration::from_secs(seconds), None).expect("valid");
                Terms::new([("limit", quota)]).expect("valid")
            };
            let table = Arc::new(Table::new(NOW, terms(Strategy::TokenBucket, 1), keys(1)));
            for key in [b"cell".as_slice(), b"overflow"] {
                (0..8).for_each(|_| charge(&table, key));
            }
            assert_eq!(table.peek(later, b"overflow", 1).expect("idle").standing.remaining(), 10);
            let next = table.retune(&|| later, terms(strategy, 3_600), keys(1));
            for key in [b"cell".as_slice(), b"overflow"] {
                let left = next.peek(later, key, 1).expect("there is room").standing.remaining();
                assert_eq!(left, 2, "{strategy:?} {}", String::from_utf8_lossy(key));
            }
        }
    }
}
