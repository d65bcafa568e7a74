//! How terms change: a successor is made, and every key moves there while all of them are decided.
//!
//! Region by region, under its lock, all keys get a cell in the successor, whose words are still unset; then the region is
//! closed, and no key comes in any more; then the words are sealed, one by one, and those of the successor worked out.
//! Whoever meets sealed words, or misses a key in a closed region, works out this key's words himself unless that was done
//! (all get the same), and decides in the successor. So no key that is known waits, and each is decided by the old terms
//! or by the new ones.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::book::{Book, Halt, Old, Request};
use super::cells::is_key;
use super::room::Region;
use super::{Clock, KeyTaken, Lineage, Place, Table};
use crate::rule::{RuleRefused, Tightest};
use crate::sync::{Ordering, lock};
use crate::{Terms, Time};

impl Table {
    /// Puts other terms in force. The table returned has all keys; this one follows to it, key by key.
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
        // From here on no more keys come in than the successor has cells for.
        self.capacity.fetch_min(Self::capacity(&book, max_keys), Ordering::Relaxed);
        for region in &self.regions {
            drop(lock(&region.hold));
        }
        let keys = self.lineage.counts.tracked.load(Ordering::Relaxed) + self.overrides.len();
        let lineage = Lineage { generation: self.lineage.generation + 1, kept, ..self.lineage.clone() };
        let next = Self::with_cells(book, max_keys, keys, &lineage);
        for own in next.overrides.values().chain([&next.overflow]) {
            next.book.set(own.override_index).unset(&own.words);
        }
        self.successor.fill(Arc::new(next));
        self.next()
    }

    fn next(&self) -> &Arc<Self> {
        self.successor.get().expect("it is there before any word is sealed and any region closed")
    }

    /// Moves everything. Only for the holder of `retuning`.
    fn move_to(&self, next: &Self, clock: Clock<'_>) {
        self.since.store(clock().as_nanos(), Ordering::Release);
        self.move_overflow(next);
        for &mark in self.overrides.keys() {
            if !next.overrides.contains_key(&mark) {
                next.place(mark);
                self.lineage.counts.tracked.fetch_add(1, Ordering::Relaxed);
            }
            self.move_key(next, mark);
        }
        for (index, region) in self.regions.iter().enumerate() {
            self.close(next, index, region, clock);
        }
        for &mark in next.overrides.keys() {
            self.move_key(next, mark);
        }
    }

    fn close(&self, next: &Self, index: usize, region: &Region, clock: Clock<'_>) {
        let _hold = lock(&region.hold);
        let marks =
            || self.cells.round(index, 0).map(|cell| cell.mark.load(Ordering::Relaxed)).filter(|&mark| is_key(mark));
        for mark in marks() {
            if next.overrides.contains_key(&mark) {
                self.lineage.counts.tracked.fetch_sub(1, Ordering::Relaxed);
            } else {
                next.place(mark);
            }
        }
        region.since.store(clock().as_nanos(), Ordering::Release);
        region.closed.store(true, Ordering::Release);
        for mark in marks() {
            self.move_key(next, mark);
        }
    }

    /// The successor, where this key's words are worked out. Only after a region was closed or words were sealed.
    #[cold]
    pub(super) fn follow(&self, mark: u64) -> &Self {
        let next = self.next();
        self.move_key(next, mark);
        next
    }

    fn move_key(&self, next: &Self, mark: u64) {
        if let Some((set, words)) = next.place_of(mark) {
            set.succeed(words, || self.old(mark), &next.lineage.kept);
        }
    }

    fn old(&self, mark: u64) -> Option<Old<'_>> {
        let (set, words) = self.place_of(mark)?;
        let since = if self.overrides.contains_key(&mark) { &self.since } else { &self.region_of(mark).since };
        Some(Old { set, words, since: Time::from_nanos(since.load(Ordering::Acquire)) })
    }

    fn move_overflow(&self, next: &Self) {
        let old = || {
            let since = Time::from_nanos(self.since.load(Ordering::Acquire));
            Some(Old { set: &self.book.plain, words: &self.overflow.words, since })
        };
        next.book.plain.succeed(&next.overflow.words, old, &next.lineage.kept);
    }

    /// Charges the overflow in force. The key's region may be open still: only the overflow is followed.
    pub(super) fn take_of_overflow(&self, request: &Request, clock: Clock<'_>) -> Result<KeyTaken, RuleRefused> {
        self.lineage.counts.overflowed.fetch_add(1, Ordering::Relaxed);
        let (table, granted) =
            self.at_overflow(|table| table.book.plain.take(&table.overflow.words, request, clock))?;
        Ok(table.taken(granted, Place::Overflow))
    }

    pub(super) fn ask_overflow(&self, request: &Request) -> Result<Tightest, RuleRefused> {
        Ok(self.at_overflow(|table| table.book.plain.ask(&table.overflow.words, request))?.1)
    }

    fn at_overflow<T>(&self, decide: impl Fn(&Self) -> Result<T, Halt>) -> Result<(&Self, T), RuleRefused> {
        let mut table = self;
        loop {
            match decide(table) {
                Ok(answer) => return Ok((table, answer)),
                Err(Halt::Refused(refused)) => return Err(refused),
                Err(Halt::Sealed) => {
                    table.move_overflow(table.next());
                    table = table.next();
                }
            }
        }
    }
}

impl Drop for Table {
    /// One by one: the drop of a long chain must not be as deep as the chain.
    fn drop(&mut self) {
        let mut next = self.successor.take();
        while let Some(table) = next {
            next = Arc::into_inner(table).and_then(|mut last| last.successor.take());
        }
    }
}
