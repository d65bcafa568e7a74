//! A bounded table of keys, each with its own levels for all the limits of a rule.
//!
//! Keys come from clients, so the table must never grow beyond its bound, never do more than a bounded amount of work
//! for one decision, and never let a client refill early by making it forget a key:
//!
//! - A key is forgotten only while all of its limits are at full credit. When there is no room for a new key, a few
//!   keys are looked at, round and round; those that are idle make room.
//! - A key that finds no room is counted by the *overflow*, one set of levels that all such keys share.
//! - Keys with an override are known from the configuration, bounded by it, and always find room.
//!
//! This table takes a lock per decision, one of a few by hash of the key, and holds it for the arithmetic only. Under
//! it levels are plain words, with the same arithmetic as a [`Limiter`](crate::Limiter): a charge of all limits or
//! none needs no way back.

mod book;
mod shard;

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::Arc;

use self::book::Book;
use self::shard::Shard;
use crate::rule::{KeyCharge, RuleAdmitted, RuleRefused, Tightest};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};
use crate::{Terms, Time};

/// How many locks the keys share.
const SHARDS: usize = if cfg!(loom) { 1 } else { 32 };

/// How many keys one decision looks at to make room for its own.
const SWEEP: usize = 16;

/// The limits of one rule, counted by key.
#[derive(Debug)]
pub(crate) struct Table {
    /// Seeded, so that nobody outside can choose keys that fall together.
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    overflow: Mutex<(Arc<Book>, book::Levels)>,
    /// What retunes compare with. Held while one goes through the shards: only retunes wait for it.
    book: Mutex<Arc<Book>>,
    tracked: AtomicUsize,
    capacity: AtomicUsize,
    /// The shard that is swept next.
    hand: AtomicUsize,
    evicted: AtomicU64,
    overflowed: AtomicU64,
}

/// How full a table of keys is. Counts are since it was made.
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
/// assert!(rule.charge(|| now, b"bob", 1).is_ok()); // no room: counted with all others that find none
/// assert!(rule.charge(|| now, b"cid", 1).is_err());
/// let keys = rule.keys().expect("it is keyed");
/// assert_eq!((keys.tracked, keys.capacity, keys.overflowed), (1, 1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStats {
    /// Keys tracked now.
    pub tracked: u64,
    /// Keys tracked at most. More are tracked for a while after it was lowered, until they are idle; and keys with an
    /// override always are.
    pub capacity: u64,
    /// Idle keys given up so far.
    pub evicted: u64,
    /// Requests decided by the shared overflow so far, because there was no room for their key.
    pub overflowed: u64,
}

impl Table {
    pub(crate) fn new(now: Time, terms: Terms, max_keys: NonZeroUsize) -> Self {
        let book = Arc::new(Book::new(terms, now, 0));
        Self {
            hasher: RandomState::new(),
            shards: std::array::from_fn(|_| Mutex::new(Shard::new(Arc::clone(&book)))),
            overflow: Mutex::new((Arc::clone(&book), book.idle_at(None, now))),
            book: Mutex::new(book),
            tracked: AtomicUsize::new(0),
            capacity: AtomicUsize::new(max_keys.get()),
            hand: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            overflowed: AtomicU64::new(0),
        }
    }

    pub(crate) fn charge(&self, now: Time, key: &[u8], cost: u64) -> Result<RuleAdmitted, RuleRefused> {
        let shard = self.shard_of(key);
        if let Some(decision) = lock(shard).charge_known(now, key, cost) {
            return decision;
        }
        if !self.has_room() {
            self.sweep(now);
        }
        // The table may have changed since the lock was last held.
        if let Some(decision) = lock(shard).charge_or_insert(now, key, cost, |always| self.take_room(always)) {
            return decision;
        }
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let mut overflow = lock(&self.overflow);
        let (book, levels) = &mut *overflow;
        book.charge(None, levels, now, cost, true)
    }

    pub(crate) fn peek(&self, now: Time, key: &[u8], cost: u64) -> Result<Tightest, RuleRefused> {
        if let Some(answer) = lock(self.shard_of(key)).ask(now, key, cost, self.has_room()) {
            return answer;
        }
        let mut overflow = lock(&self.overflow);
        let (book, levels) = &mut *overflow;
        book.ask(None, levels, now, cost)
    }

    pub(crate) fn refund(&self, key: &[u8], charge: &KeyCharge, clock: impl Fn() -> Time) {
        if charge.overflow {
            let mut overflow = lock(&self.overflow);
            let (book, levels) = &mut *overflow;
            book.refund(None, levels, charge, clock());
        } else {
            lock(self.shard_of(key)).refund(key, charge, clock);
        }
    }

    /// Shard by shard: at any moment each key is decided by the old terms or by the new ones, and what it consumed is
    /// carried over in between.
    pub(crate) fn retune(&self, clock: impl Fn() -> Time, terms: Terms, max_keys: NonZeroUsize) {
        let mut in_force = lock(&self.book);
        self.capacity.store(max_keys.get(), Ordering::Relaxed);
        if in_force.terms() != &terms {
            let book = Arc::new(Book::new(terms, clock(), in_force.generation() + 1));
            for shard in &self.shards {
                lock(shard).retune(&book, &clock);
            }
            let mut overflow = lock(&self.overflow);
            let (old, levels) = &mut *overflow;
            *levels = book.carry_over(old, (None, None), levels, clock());
            *old = Arc::clone(&book);
            *in_force = book;
        }
    }

    pub(crate) fn stats(&self) -> KeyStats {
        KeyStats {
            tracked: self.tracked.load(Ordering::Relaxed) as u64,
            capacity: self.capacity.load(Ordering::Relaxed) as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            overflowed: self.overflowed.load(Ordering::Relaxed),
        }
    }

    fn shard_of(&self, key: &[u8]) -> &Mutex<Shard> {
        let hash = usize::try_from(self.hasher.hash_one(key) >> 32).unwrap_or(0);
        &self.shards[hash % self.shards.len()]
    }

    fn has_room(&self) -> bool {
        self.tracked.load(Ordering::Relaxed) < self.capacity.load(Ordering::Relaxed)
    }

    fn take_room(&self, always: bool) -> bool {
        let capacity = self.capacity.load(Ordering::Relaxed);
        self.tracked
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tracked| {
                (always || tracked < capacity).then_some(tracked + 1)
            })
            .is_ok()
    }

    /// Looks at a few keys and forgets those that are idle. Holds no other lock meanwhile.
    fn sweep(&self, now: Time) {
        let mut left = SWEEP;
        for _ in 0..SHARDS {
            let hand = self.hand.load(Ordering::Relaxed);
            let (looked_at, evicted, finished) = lock(&self.shards[hand % self.shards.len()]).sweep(now, left);
            if finished {
                // If another thread moved it meanwhile, it is where it should be.
                let _ = self.hand.compare_exchange(hand, hand.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed);
            }
            self.tracked.fetch_sub(evicted, Ordering::Relaxed);
            self.evicted.fetch_add(evicted as u64, Ordering::Relaxed);
            left -= looked_at;
            if left == 0 {
                return;
            }
        }
    }
}
