//! A bounded table of keys, each with its own words for all the limits of a rule.
//!
//! Clients choose keys. So the table must never grow beyond its bound, never do more than a bounded amount of work for
//! one decision, and never let a client refill early by making the table forget its key:
//!
//! - The memory of all cells is reserved at the start. A known key is found by reading a few words, and decided like a
//!   [`Limiter`](crate::Limiter): without a lock, and writing only its own words.
//! - The table forgets a key only while all of its limits are at full credit, and only to give its cell to another key.
//! - A key that finds no cell is counted on its own in the *overflow*: see `overflow`. The overflow is created when the
//!   first key needs it.
//! - Keys with an override are known from the configuration and have words of their own outside of the table.
//!
//! The table holds 63 bits of a seeded hash instead of each key. Two keys with the same 63 bits share one count. Among
//! a million keys this has a probability of 1 in 18 million; clients cannot cause it, and it can only refuse too much.
//! `admission` explains the races, and `succession` how terms change.

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

use self::{
    admission::Region,
    book::{Book, Granted, Halt, Set},
    cells::{Cell, Cells, fingerprint},
    hash::Secrets,
    histories::{Histories, Journals},
};
use crate::{
    Standing, Terms, Time,
    answer::{Charged, ChargedWords, KeyCharge, Receipts, RuleAdmitted, RuleCharge, RuleChargedAhead, Tightest},
    meter,
    queue::Queues,
    refused::RuleRefused,
    supply::Supply,
    sync::{AtomicU64, AtomicUsize, Mutex, Once, Ordering},
};

pub(crate) use self::book::Request;
pub use self::survey::KeySurvey;

/// Reads the time. Called only to give charges back, and by retunes.
pub(crate) type Clock<'a> = &'a dyn Fn() -> Time;

/// In how many blocks of its path a new key may take a cell.
const NEAR: usize = 64;

/// The limits of one rule, counted by key.
#[derive(Debug)]
pub(crate) struct Table {
    lineage: Lineage,
    book: Book,
    max_keys: NonZeroUsize,
    /// The capacity in force. Lowered while a smaller successor is being filled.
    capacity: AtomicUsize,
    cells: Cells,
    /// The only limit of all keys, if its state is one level and no key has an override.
    sole: Option<Supply>,
    regions: Box<[Region]>,
    /// Keys with an override, by fingerprint.
    overrides: HashMap<u64, Own, BuildHasherDefault<AsItIs>>,
    /// How many keys without a cell each region has room for.
    overflow_places: usize,
    /// Words that are never charged: the state of any key that is not in the table.
    blank: Vec<AtomicU64>,
    /// Words that are never charged, for the meters of the overflow.
    overflow_blank: Vec<AtomicU64>,
    /// When the successor took over the keys that are not in a region, in nanoseconds of [`Time`].
    since: AtomicU64,
    /// When this table took over, or when the first table was created.
    began: AtomicU64,
    /// What is known about earlier charges of keys, if the words do not hold it: see `succession`.
    histories: Option<Histories>,
    /// When keys were charged, noted for a while after the terms changed.
    journals: Option<Journals>,
    /// Set before any word is sealed.
    successor: Once<Arc<Table>>,
    /// Held by the thread that fills the successor, until it is complete.
    retuning: Mutex<()>,
}

/// What a table inherits from its predecessors.
#[derive(Clone, Debug, Default)]
struct Lineage {
    /// Seeded, so that clients cannot choose keys that collide.
    secrets: Secrets,
    counts: Arc<Counts>,
    /// The waiting requests, by key.
    queues: Arc<Queues>,
    /// How many retunes, and so tables, came before this one.
    retunes: u64,
    /// The index of each limit in the last of them, matched by name.
    kept: Vec<Option<usize>>,
}

/// Words outside of the cells.
#[derive(Debug)]
struct Own {
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

/// What all limits of a key admitted.
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

/// How full a table of keys is. Counts start when the table is created.
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
/// assert!(rule.charge(|| now, b"bob", 1).is_ok()); // no room: counted in the overflow
/// assert!(rule.charge(|| now, b"bob", 1).is_err());
/// let keys = rule.keys().expect("it is keyed");
/// assert_eq!((keys.tracked, keys.capacity, keys.overflowed), (1, 1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStats {
    /// Keys tracked now, except for keys with an override, which are always tracked.
    pub tracked: u64,
    /// Keys tracked at most. After it was lowered, more keys are tracked until they are idle.
    pub capacity: u64,
    /// How many idle keys were removed so far.
    pub evicted: u64,
    /// Requests that were decided in the overflow so far, because there was no cell for their key. They are counted by
    /// key, too.
    pub overflowed: u64,
}

impl Table {
    pub(crate) fn new(now: Time, terms: Terms, max_keys: NonZeroUsize) -> Self {
        Self::with_cells(Book::new(terms, now), max_keys, 0, &Lineage::default(), now, None)
    }

    fn capacity(book: &Book, max_keys: NonZeroUsize) -> usize {
        max_keys.get().min(Cells::most(book.plain.words()))
    }

    /// A table with cells for at least `keys`.
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
            let own = Own { override_index: Some(index), words: zeros(book.set(Some(index)).words()) };
            (lineage.mark_of(key), own)
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
            successor: Once::empty(),
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
        let request = Request { now, cost, latest: None };
        let KeyTaken { charge, tightest, .. } = self.take(self.lineage.mark_of(key), &request, clock)?;
        Ok(RuleAdmitted { charge: RuleCharge { of: Charged::Key(charge) }, tightest })
    }

    /// Charges a known key whose only limit has a level as its state, without contention: the most frequent case. None if
    /// the case is not that simple.
    ///
    /// The function is short and inlined, so the processor fetches the cells of the next requests while it waits for
    /// this one. No mark or word is selected by arithmetic on a value that is still loading: a branch lets the
    /// processor speculate, while arithmetic makes it stop. The clock is read after the load of the cell has started.
    #[inline(always)] // as in `Limiter::check`: otherwise the answer goes through memory
    pub(crate) fn charge_at_once(
        &self,
        key: &[u8],
        cost: u64,
        clock: Clock<'_>,
    ) -> Option<Result<RuleAdmitted, RuleRefused>> {
        let supply = self.sole.as_ref()?;
        let mark = self.lineage.mark_of(key);
        let (index, own, word) = match self.cells.nearest(mark) {
            Some(cell) => cell,
            None => self.find_word(mark)?,
        };
        let now = clock();
        let elapsed = supply.elapsed(now);
        if elapsed >= supply.direct() || self.journals(now).is_some() {
            return None;
        }
        let floor = supply.flowed(elapsed);
        let level = word.load(Ordering::SeqCst);
        let Some(after) = supply.charge_at_once(level, floor, cost) else {
            let is_refused = supply.refuses_at_once(level, floor, cost) && own.load(Ordering::Acquire) == mark;
            let standing = Standing::of_level(supply, level, floor, now);
            return is_refused.then_some(Err(RuleRefused { limit: 0, standing, cost, override_index: None }));
        };
        word.compare_exchange(level, after, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        let charged = meter::Receipt { at: now, cost, mark: after };
        if own.load(Ordering::Acquire) != mark {
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

    /// The cell of a key, with its mark and its only word.
    #[inline(never)]
    fn find_word(&self, mark: u64) -> Option<(usize, &AtomicU64, &AtomicU64)> {
        let cell = self.find(mark)?;
        Some((cell.index, cell.mark, &cell.words[0]))
    }

    /// The key was forgotten in between: these were another key's words.
    #[cold]
    #[inline(never)]
    fn forgotten(&self, word: &AtomicU64, receipt: meter::Receipt, clock: Clock<'_>) {
        self.book.plain.give_back(std::slice::from_ref(word), &[receipt], clock);
    }

    /// Charges all limits of a key, or none, at its next turn.
    pub(crate) fn charge_ahead(
        &self,
        key: &[u8],
        request: &Request,
        clock: Clock<'_>,
    ) -> Result<RuleChargedAhead, RuleRefused> {
        let KeyTaken { at, charge, tightest } = self.take(self.lineage.mark_of(key), request, clock)?;
        Ok(RuleChargedAhead { at, charge: RuleCharge { of: Charged::Key(charge) }, tightest })
    }

    #[inline(never)]
    fn take(&self, mark: u64, request: &Request, clock: Clock<'_>) -> Result<KeyTaken, RuleRefused> {
        let mut table = self;
        loop {
            match table.take_here(mark, request, clock) {
                Answer::Decided(decision) => return decision,
                Answer::Moved => table = table.follow(mark),
            }
        }
    }

    #[inline(always)]
    fn take_here(&self, mark: u64, request: &Request, clock: Clock<'_>) -> Answer<KeyTaken> {
        if let Some((set, words)) = self.override_of(mark) {
            let taken = self.noting(mark, request, || set.take(words, request, clock), Result::is_ok);
            return self.answer(taken, ChargedWords::Override);
        }
        if let Some(cell) = self.find(mark) {
            let is_its_own = || cell.mark.load(Ordering::Acquire) == mark;
            let take = || self.book.plain.take(cell.words, request, clock);
            let taken = self.noting(mark, request, take, |taken| taken.is_ok() && is_its_own());
            // The key was not forgotten in between, so these were its words.
            if is_its_own() {
                return self.answer(taken, ChargedWords::Cell(cell.index));
            }
            if let Ok(granted) = taken {
                self.book.plain.give_back(cell.words, granted.receipts.as_slice(), clock);
            }
        }
        self.let_in(mark, request, clock)
    }

    /// The journals, if a charge at this time must be noted.
    #[inline(always)]
    fn journals(&self, now: Time) -> Option<&Journals> {
        self.journals.as_ref().filter(|journals| now.as_nanos() < journals.until())
    }

    /// Charges a key, and notes the charge if required.
    #[inline(always)]
    fn noting<T>(
        &self,
        mark: u64,
        request: &Request,
        charge: impl FnOnce() -> T,
        is_admitted: impl FnOnce(&T) -> bool,
    ) -> T {
        match self.journals(request.now) {
            None => charge(),
            Some(journals) => {
                let at = request.latest.map_or(request.now, |latest| latest.max(request.now));
                journals.noting(mark, (at, request.cost), charge, is_admitted)
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

    /// The answer that a charge would get.
    pub(crate) fn peek(&self, now: Time, key: &[u8], cost: u64) -> Result<Tightest, RuleRefused> {
        let mark = self.lineage.mark_of(key);
        let request = Request { now, cost, latest: None };
        let mut table = self;
        loop {
            match table.peek_here(mark, &request) {
                Answer::Decided(answer) => return answer,
                Answer::Moved => table = table.follow(mark),
            }
        }
    }

    fn peek_here(&self, mark: u64, request: &Request) -> Answer<Tightest> {
        if let Some((set, words)) = self.override_of(mark) {
            return set.ask(words, request).into();
        }
        if let Some(cell) = self.find(mark) {
            let asked = self.book.plain.ask(cell.words, request);
            if cell.mark.load(Ordering::Acquire) == mark {
                return asked.into();
            }
        }
        self.peek_new_key(mark, request)
    }

    /// Gives back what a key was charged. If the table forgot the key meanwhile, the key was at full credit at that
    /// time, so its new cell gets nothing back.
    pub(crate) fn refund(&self, key: &[u8], charge: &KeyCharge, clock: Clock<'_>) {
        let mut table = self;
        while table.lineage.retunes < charge.retunes {
            let Some(next) = table.successor.get() else { return };
            table = next;
        }
        if table.lineage.retunes > charge.retunes {
            return;
        }
        let mark = self.lineage.mark_of(key);
        let charged = match charge.of {
            ChargedWords::Overflow => return table.refund_in_overflow(mark, charge.receipts.as_slice(), clock),
            ChargedWords::Override => table.override_of(mark),
            ChargedWords::Cell(index) => {
                table.find(mark).filter(|cell| cell.index == index).map(|cell| (&table.book.plain, cell.words))
            }
        };
        if let Some((set, words)) = charged {
            set.give_back(words, charge.receipts.as_slice(), clock);
            self.wake(mark);
        }
    }

    pub(crate) fn stats(&self) -> KeyStats {
        let mut table = self;
        while let Some(next) = table.successor.get() {
            table = next;
        }
        KeyStats {
            tracked: self.lineage.counts.tracked.load(Ordering::Relaxed) as u64,
            capacity: table.capacity.load(Ordering::Relaxed) as u64,
            evicted: self.lineage.counts.evicted.load(Ordering::Relaxed),
            overflowed: self.lineage.counts.overflowed.load(Ordering::Relaxed),
        }
    }

    fn override_of(&self, mark: u64) -> Option<(&Set, &[AtomicU64])> {
        if self.overrides.is_empty() {
            return None;
        }
        let own = self.overrides.get(&mark)?;
        Some((self.book.set(own.override_index), &own.words))
    }

    fn region_of(&self, mark: u64) -> &Region {
        &self.regions[self.cells.region_of(mark)]
    }

    /// The cell of a key.
    #[inline(always)]
    fn find(&self, mark: u64) -> Option<Cell<'_>> {
        for (seen, block) in self.cells.path(mark).enumerate() {
            match block.find(mark) {
                Ok(cell) => return Some(cell),
                Err(true) => return None,
                Err(false) if seen + 1 >= NEAR && !self.region_of(mark).has_far() => return None,
                Err(false) => {}
            }
        }
        None
    }

    /// The words of a key, if it has words.
    fn place_of(&self, mark: u64) -> Option<(&Set, &[AtomicU64])> {
        self.override_of(mark).or_else(|| Some((&self.book.plain, self.find(mark)?.words)))
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
    fn mark_of(&self, key: &[u8]) -> u64 {
        fingerprint(self.secrets.hash(key))
    }
}

fn zeros(words: usize) -> Vec<AtomicU64> {
    vec![0; words].into_iter().map(AtomicU64::new).collect()
}

/// Fingerprints are already hashes.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
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
