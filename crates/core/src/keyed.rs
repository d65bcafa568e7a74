//! A bounded table of keys. Each key has its own words for all limits of a rule.
//!
//! Clients choose keys. So the table must never grow beyond its bound, and must never do more than a bounded amount of
//! work for one decision. It must never forget a key whose client would get tokens early. These rules follow:
//!
//! - The memory of all cells is reserved at the start. A known key is found by reading a few words. Its decision is
//!   like the decision of a [`Limiter`](crate::Limiter): without a lock, and with writes only to the key's own words.
//! - The table forgets a key only while all of its limits have their whole burst free, and only to give its cell to
//!   another key.
//! - A key without a cell is counted separately in the *overflow*: see `overflow`. The overflow is created when the
//!   first key needs it.
//! - Keys with an override are known from the configuration and have separate words outside of the table.
//!
//! The table stores a *fingerprint* instead of each key: 63 bits of a seeded hash. Two keys with the same fingerprint
//! share one count. Among a million keys, such a pair has a probability of 1 in 18 million. Clients cannot cause it,
//! and it can only refuse too many requests. `admission` explains the races, and `succession` explains changes of the
//! terms.

mod admission;
mod book;
mod cells;
mod hash;
mod histories;
mod overflow;
mod pages;
mod succession;
mod survey;
mod waiting;

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    num::NonZeroUsize,
    sync::Arc,
};

pub use self::survey::KeySurvey;
use self::{
    admission::Region,
    book::{Book, Granted, Halt, MeterSet},
    cells::{Cells, KeyCell, fingerprint},
    hash::Secrets,
    histories::{Histories, Journals},
};
pub(crate) use self::{book::Request, survey::least_of};
use crate::{
    Standing, Terms, Time,
    answer::{Charged, ChargedWords, KeyCharge, Receipts, RuleAdmitted, RuleCharge, RuleChargedAhead, Tightest},
    chain::Chain,
    meter,
    queue::Queues,
    refused::RuleRefused,
    supply::Supply,
    sync::{AtomicU64, AtomicUsize, Mutex, Ordering},
    word::Sealed,
};

/// A function that reads the time.
pub(crate) type Clock<'a> = &'a dyn Fn() -> Time;

/// The number of blocks of its path in which a new key can take a cell.
const NEAR: usize = 64;

/// The limits of one rule, counted by key.
#[derive(Debug)]
pub(crate) struct Table {
    lineage: Lineage,
    book: Book,
    max_keys: NonZeroUsize,
    /// The largest number of keys with a cell. Lowered while a smaller successor is being filled.
    capacity: AtomicUsize,
    cells: Cells,
    /// The only limit of all keys, if its state is one level and no key has an override.
    sole: Option<Supply>,
    regions: Box<[Region]>,
    /// Keys with an override, by fingerprint.
    overrides: HashMap<u64, OverrideWords, BuildHasherDefault<IdentityHasher>>,
    /// The number of keys in the overflow for which each region has room.
    overflow_places: usize,
    /// Words that are never charged: the state of every key that is not in the table.
    blank: Vec<AtomicU64>,
    /// Words that are never charged: the state of a key that is new in the overflow.
    overflow_blank: Vec<AtomicU64>,
    /// The time at which the successor took over the keys that are not in a region, in nanoseconds of [`Time`].
    since: AtomicU64,
    /// The time at which this table came into force, in nanoseconds of [`Time`].
    began: AtomicU64,
    /// The earlier admissions of keys, if the words do not contain them: see `succession`.
    histories: Option<Histories>,
    /// The times of the keys' charges, recorded for some periods after the terms changed.
    journals: Option<Journals>,
    /// The link to the successor, which is set before any word is sealed.
    chain: Chain<Table>,
    /// Held by the thread that fills the successor, until the successor is complete.
    retuning: Mutex<()>,
}

/// The data that a table inherits from its predecessors.
#[derive(Clone, Debug, Default)]
struct Lineage {
    /// The seeds of the hash, so that clients cannot choose keys that collide.
    secrets: Secrets,
    counts: Arc<Counts>,
    /// The waiting requests, by key.
    queues: Arc<Queues>,
    /// The number of retunes, and so of tables, before this table.
    retunes: u64,
    /// The index of each limit in the previous table, matched by name.
    kept: Vec<Option<usize>>,
    /// For each limit, whether no bucket was in force before this table.
    bucketless: Vec<bool>,
}

/// The words of a key with an override, outside of the cells.
#[derive(Debug)]
struct OverrideWords {
    override_index: Option<usize>,
    words: Vec<AtomicU64>,
}

/// Counters of a table and all its successors.
#[derive(Debug, Default)]
struct Counts {
    tracked: AtomicUsize,
    evicted: AtomicU64,
    overflowed: AtomicU64,
}

/// A request that was admitted by all limits of a key.
#[derive(Debug)]
struct KeyTaken {
    at: Time,
    charge: KeyCharge,
    tightest: Tightest,
}

/// The outcome of a request to a table.
enum Answer<T> {
    Decided(Result<T, RuleRefused>),
    /// The key belongs to the successor.
    Moved,
}

/// The number of keys in a table, and counts since the table was created.
///
/// ```
/// use std::num::NonZeroUsize;
/// use std::time::Duration;
/// use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
///
/// let now = Time::from_nanos(0);
/// let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(1), None)?;
/// let rule = RuleLimiter::keyed(now, Terms::new([("limit", quota)])?, NonZeroUsize::MIN);
/// assert!(rule.charge(|| now, b"ann", 1).is_ok());
/// assert!(rule.charge(|| now, b"bob", 1).is_ok()); // there is no cell: bob is counted in the overflow
/// assert!(rule.charge(|| now, b"bob", 1).is_err());
/// let keys = rule.keys().expect("it is keyed");
/// assert_eq!((keys.tracked, keys.capacity, keys.overflowed), (1, 1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStats {
    /// The number of keys with a cell. Keys with an override do not count.
    pub tracked: u64,
    /// The largest number of keys with a cell. After the capacity was lowered, more keys keep their cells until they
    /// are idle.
    pub capacity: u64,
    /// The number of idle keys that were removed.
    pub evicted: u64,
    /// The number of requests that were decided in the overflow, because there was no cell for their key. The overflow
    /// counts by key, too.
    pub overflowed: u64,
}

impl Table {
    pub(crate) fn new(now: Time, terms: Terms, max_keys: NonZeroUsize) -> Self {
        let book = Book::new(terms, now);
        let lineage = Lineage { bucketless: vec![true; book.terms.limits().len()], ..Lineage::default() };
        Self::with_cells(book, max_keys, 0, &lineage, now, None)
    }

    fn capacity(book: &Book, max_keys: NonZeroUsize) -> usize {
        max_keys.get().min(Cells::most(book.plain.words()))
    }

    /// Returns a table with cells for at least `keys`.
    fn with_cells(
        book: Book,
        max_keys: NonZeroUsize,
        keys: usize,
        lineage: &Lineage,
        began: Time,
        histories: Option<Histories>,
    ) -> Self {
        let capacity = Self::capacity(&book, max_keys);
        let cells = Cells::new(keys.max(capacity), book.plain.words());
        let overrides = book.terms.overridden().map(|(key, index)| {
            let own = OverrideWords { override_index: Some(index), words: zeros(book.set(Some(index)).words()) };
            (lineage.fingerprint_of(key), own)
        });
        Self {
            overrides: overrides.collect(),
            overflow_places: overflow::places(capacity, cells.regions(), &book.overflow),
            blank: zeros(book.plain.words()),
            overflow_blank: zeros(book.overflow.words()),
            regions: (0..cells.regions()).map(|_| Region::default()).collect(),
            cells,
            sole: book.plain.line().filter(|_| book.terms.overrides() == 0).copied(),
            capacity: AtomicUsize::new(capacity),
            max_keys,
            book,
            lineage: lineage.clone(),
            since: AtomicU64::new(0),
            began: AtomicU64::new(began.as_nanos()),
            histories,
            journals: None,
            chain: Chain::first(),
            retuning: Mutex::new(()),
        }
    }

    /// Charges all limits of a key, or none.
    #[inline(never)]
    pub(crate) fn charge(
        &self,
        key: &[u8],
        now: Time,
        cost: u64,
        clock: Clock<'_>,
    ) -> Result<RuleAdmitted, RuleRefused> {
        let request = Request { now, cost, when: meter::When::Now };
        let KeyTaken { charge, tightest, .. } = self.take(self.lineage.fingerprint_of(key), &request, clock)?;
        Ok(RuleAdmitted { charge: RuleCharge { of: Charged::Key(charge) }, tightest })
    }

    /// Charges a known key whose only limit has a level as its state, without contention. This is the most frequent
    /// case. None if the decision needs the slow path.
    ///
    /// The function is short and inlined, so the processor fetches the cells of the next requests while it waits for
    /// this cell. No mark or word is selected by arithmetic on a value that is still loading: a branch lets the
    /// processor speculate, but arithmetic makes it wait. The clock is read after the load of the cell has started.
    #[inline(always)] // without inlining, the answer goes through memory
    pub(crate) fn charge_at_once(
        &self,
        key: &[u8],
        cost: u64,
        clock: Clock<'_>,
    ) -> Option<Result<RuleAdmitted, RuleRefused>> {
        let supply = self.sole.as_ref()?;
        let fingerprint = self.lineage.fingerprint_of(key);
        let (index, own, word) = match self.cells.nearest(fingerprint) {
            Some(cell) => cell,
            None => self.find_word(fingerprint)?,
        };
        let now = clock();
        let elapsed = supply.elapsed(now);
        if elapsed >= supply.direct() || self.journals(now).is_some() {
            return None;
        }
        let floor = supply.flowed(elapsed);
        let level = word.load(Ordering::SeqCst);
        let Some(after) = supply.charge_at_once(level, floor, cost) else {
            let is_refused = supply.refuses_at_once(level, floor, cost) && own.load(Ordering::Acquire) == fingerprint;
            let standing = Standing::of_level(supply, level, floor, now);
            return is_refused.then_some(Err(RuleRefused { limit: 0, standing, cost, override_index: None }));
        };
        word.compare_exchange(level, after, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        let charged = meter::Receipt { at: now, cost, mark: after };
        if own.load(Ordering::Acquire) != fingerprint {
            self.forgotten(word, charged, clock);
            return None;
        }
        let standing = Standing::of_level(supply, after, floor, now);
        let charge = KeyCharge {
            receipts: Receipts::One(charged),
            retunes: self.lineage.retunes,
            of: ChargedWords::Cell(index),
        };
        let tightest = Tightest { limit: 0, standing, override_index: None };
        Some(Ok(RuleAdmitted { charge: RuleCharge { of: Charged::Key(charge) }, tightest }))
    }

    /// Returns the cell of a key, with its mark and its only word.
    #[inline(never)]
    fn find_word(&self, fingerprint: u64) -> Option<(usize, &AtomicU64, &AtomicU64)> {
        let cell = self.find(fingerprint)?;
        Some((cell.index, cell.mark, &cell.words[0]))
    }

    /// Gives a charge back that went to another key's words, because the table forgot the key during the decision.
    #[cold]
    #[inline(never)]
    fn forgotten(&self, word: &AtomicU64, receipt: meter::Receipt, clock: Clock<'_>) {
        self.book.plain.refund(std::slice::from_ref(word), &[receipt], clock);
    }

    /// Charges all limits of a key, or none, at its next turn.
    pub(crate) fn charge_ahead(
        &self,
        key: &[u8],
        request: &Request,
        clock: Clock<'_>,
    ) -> Result<RuleChargedAhead, RuleRefused> {
        let KeyTaken { at, charge, tightest } = self.take(self.lineage.fingerprint_of(key), request, clock)?;
        Ok(RuleChargedAhead { at, charge: RuleCharge { of: Charged::Key(charge) }, tightest })
    }

    #[inline(never)]
    fn take(&self, fingerprint: u64, request: &Request, clock: Clock<'_>) -> Result<KeyTaken, RuleRefused> {
        match self.take_here(fingerprint, request, clock) {
            Answer::Decided(decision) => decision,
            Answer::Moved => self.follow(fingerprint).take(fingerprint, request, clock),
        }
    }

    #[inline(always)]
    fn take_here(&self, fingerprint: u64, request: &Request, clock: Clock<'_>) -> Answer<KeyTaken> {
        if let Some((set, words)) = self.override_of(fingerprint) {
            let taken = self.recording(fingerprint, request, || set.take(words, request, clock), Result::is_ok);
            return self.answer(taken, ChargedWords::Override);
        }
        if let Some(cell) = self.find(fingerprint) {
            let is_its_own = || cell.mark.load(Ordering::Acquire) == fingerprint;
            let take = || self.book.plain.take(cell.words, request, clock);
            let taken = self.recording(fingerprint, request, take, |taken| taken.is_ok() && is_its_own());
            // The key was not forgotten during the charge, so these were its words.
            if is_its_own() {
                return self.answer(taken, ChargedWords::Cell(cell.index));
            }
            if let Ok(granted) = taken {
                self.book.plain.refund(cell.words, granted.receipts.as_slice(), clock);
            }
        }
        self.let_in(fingerprint, request, clock)
    }

    /// Returns the journals if they must record a charge at this time.
    #[inline(always)]
    fn journals(&self, now: Time) -> Option<&Journals> {
        self.journals.as_ref().filter(|journals| now.as_nanos() < journals.until())
    }

    /// Charges a key, and records the charge if there are journals.
    #[inline(always)]
    fn recording<T>(
        &self,
        fingerprint: u64,
        request: &Request,
        charge: impl FnOnce() -> T,
        is_admitted: impl FnOnce(&T) -> bool,
    ) -> T {
        match self.journals(request.now) {
            None => charge(),
            Some(journals) => {
                let at = request.when.latest(request.now);
                journals.recording(fingerprint, (at, request.cost), charge, is_admitted)
            }
        }
    }

    #[inline(always)]
    fn answer(&self, taken: Result<Granted, Halt>, of: ChargedWords) -> Answer<KeyTaken> {
        Answer::Decided(match taken {
            Ok(granted) => Ok(self.taken(granted, of)),
            Err(Halt::Refused(refused)) => Err(refused),
            Err(Halt::Sealed) => return Answer::Moved,
        })
    }

    #[inline(always)]
    fn taken(&self, granted: Granted, of: ChargedWords) -> KeyTaken {
        let Granted { at, receipts, tightest } = granted;
        KeyTaken { at, charge: KeyCharge { receipts, retunes: self.lineage.retunes, of }, tightest }
    }

    /// Returns the result that a charge would have, and charges nothing.
    pub(crate) fn peek(&self, now: Time, key: &[u8], cost: u64) -> Result<Tightest, RuleRefused> {
        let fingerprint = self.lineage.fingerprint_of(key);
        let request = Request { now, cost, when: meter::When::Now };
        match self.peek_here(fingerprint, &request) {
            Answer::Decided(decision) => decision,
            Answer::Moved => self.follow(fingerprint).peek(now, key, cost),
        }
    }

    fn peek_here(&self, fingerprint: u64, request: &Request) -> Answer<Tightest> {
        if let Some((set, words)) = self.override_of(fingerprint) {
            return set.peek(words, request).into();
        }
        if let Some(cell) = self.find(fingerprint) {
            let peeked = self.book.plain.peek(cell.words, request);
            if cell.mark.load(Ordering::Acquire) == fingerprint {
                return peeked.into();
            }
        }
        self.peek_new_key(fingerprint, request)
    }

    /// Gives back a charge of a key. If the table forgot the key in the meantime, the key's whole burst was free at
    /// that time, so its new cell gets nothing back.
    pub(crate) fn refund(&self, key: &[u8], charge: &KeyCharge, clock: Clock<'_>) {
        if self.lineage.retunes < charge.retunes {
            if let Some(next) = self.chain.successor() {
                next.refund(key, charge, clock);
            }
            return;
        }
        if self.lineage.retunes > charge.retunes {
            return;
        }
        let fingerprint = self.lineage.fingerprint_of(key);
        let charged = match charge.of {
            ChargedWords::Overflow => {
                self.refund_in_overflow(fingerprint, charge.receipts.as_slice(), clock);
                return self.wake(fingerprint);
            }
            ChargedWords::Override => self.override_of(fingerprint),
            ChargedWords::Cell(index) => {
                self.find(fingerprint).filter(|cell| cell.index == index).map(|cell| (&self.book.plain, cell.words))
            }
        };
        if let Some((set, words)) = charged {
            set.refund(words, charge.receipts.as_slice(), clock);
            self.wake(fingerprint);
        }
    }

    /// Gives back units of any earlier charges of a key. An unknown key has its full credit.
    pub(crate) fn credit(&self, key: &[u8], units: u64, clock: Clock<'_>) {
        let fingerprint = self.lineage.fingerprint_of(key);
        match self.credit_here(fingerprint, units, clock) {
            Ok(()) => self.wake(fingerprint),
            Err(Sealed) => self.follow(fingerprint).credit(key, units, clock),
        }
    }

    fn credit_here(&self, fingerprint: u64, units: u64, clock: Clock<'_>) -> Result<(), Sealed> {
        match self.override_of(fingerprint) {
            Some((set, words)) => set.credit(words, units, clock),
            None => self.credit_in_region(fingerprint, units, clock),
        }
    }

    pub(crate) fn stats(&self) -> KeyStats {
        if let Some(next) = self.chain.successor() {
            return next.stats();
        }
        KeyStats {
            tracked: self.lineage.counts.tracked.load(Ordering::Relaxed) as u64,
            capacity: self.capacity.load(Ordering::Relaxed) as u64,
            evicted: self.lineage.counts.evicted.load(Ordering::Relaxed),
            overflowed: self.lineage.counts.overflowed.load(Ordering::Relaxed),
        }
    }

    fn override_of(&self, fingerprint: u64) -> Option<(&MeterSet, &[AtomicU64])> {
        if self.overrides.is_empty() {
            return None;
        }
        let own = self.overrides.get(&fingerprint)?;
        Some((self.book.set(own.override_index), &own.words))
    }

    fn region_of(&self, fingerprint: u64) -> &Region {
        &self.regions[self.cells.region_of(fingerprint)]
    }

    /// Returns the cell of a key.
    #[inline(always)]
    fn find(&self, fingerprint: u64) -> Option<KeyCell<'_>> {
        for (seen, block) in self.cells.path(fingerprint).enumerate() {
            match block.find(fingerprint) {
                Ok(cell) => return Some(cell),
                Err(true) => return None,
                Err(false) if seen + 1 >= NEAR && !self.region_of(fingerprint).has_far() => return None,
                Err(false) => {}
            }
        }
        None
    }

    /// Returns the words of a key, if it has words.
    fn place_of(&self, fingerprint: u64) -> Option<(&MeterSet, &[AtomicU64])> {
        self.override_of(fingerprint).or_else(|| Some((&self.book.plain, self.find(fingerprint)?.words)))
    }
}

impl<T> From<Result<T, Halt>> for Answer<T> {
    fn from(result: Result<T, Halt>) -> Self {
        match result {
            Ok(answer) => Self::Decided(Ok(answer)),
            Err(Halt::Refused(refused)) => Self::Decided(Err(refused)),
            Err(Halt::Sealed) => Self::Moved,
        }
    }
}

impl Lineage {
    #[inline(always)]
    fn fingerprint_of(&self, key: &[u8]) -> u64 {
        fingerprint(self.secrets.hash(key))
    }
}

fn zeros(words: usize) -> Vec<AtomicU64> {
    vec![0; words].into_iter().map(AtomicU64::new).collect()
}

/// A hasher that returns its number, because fingerprints are already hashes.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}
