//! One limit, shared by any number of threads: one word holds its whole state, one compare-and-swap admits, a refusal
//! writes nothing. No thread ever waits for another here.
//!
//! A retune must not lose what was consumed while others decide. It links a successor behind the cell in force, then
//! sets the top bit of its word, which no charge can pass any more. Whoever meets that bit works out the successor's
//! first level from the sealed one (all get the same result), puts it there unless somebody was faster, and decides in
//! the successor. So deciders help the change through instead of waiting for it, and no charge falls in between. Only
//! retunes wait for each other.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::supply::Supply;
use crate::sync::{AtomicU64, Mutex, Once, Ordering, lock};
use crate::{Quota, Standing, Time};

/// Set in a word whose cell has a successor: the level below it is final.
const SEALED: u64 = 1 << 63;

/// The word of a successor whose first level nobody has put there yet. No level and no sealed level looks like it.
const UNSET: u64 = u64::MAX;

/// A limit that threads share. Clones share one state.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time};
///
/// let now = Time::from_nanos(1_700_000_000_000_000_000);
/// let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?);
/// assert!(limiter.check(now, 1).is_ok());
/// assert!(limiter.check(now, 1).is_ok());
///
/// let refused = limiter.check(now, 1).unwrap_err();
/// let retry_after = refused.retry_after().expect("one request fits the burst");
/// assert_eq!(retry_after, Duration::from_millis(500));
/// assert!(limiter.check(now.saturating_add(retry_after), 1).is_ok());
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    cell: Arc<Cell>,
}

#[derive(Debug)]
struct Cell {
    supply: Supply,
    /// How many retunes came before. A charge is given back only to the cell that it was made in.
    generation: u64,
    /// The level, or the level with [`SEALED`], or [`UNSET`].
    word: AtomicU64,
    /// When this cell took over, in nanoseconds of [`Time`]. Final once the predecessor's word is sealed.
    since: AtomicU64,
    /// Filled before the word is sealed.
    successor: Once<Arc<Cell>>,
    /// Held by the one who may fill `successor` and seal the word.
    retuning: Mutex<()>,
}

impl Limiter {
    /// A limiter with all of its burst free.
    pub fn new(now: Time, quota: Quota) -> Self {
        // Level zero is on the floor at the base.
        let cell = Cell::new(Supply::new(quota, now), 0, 0);
        Self { cell: Arc::new(cell) }
    }

    /// Charges `cost` if the quota has room for it. A refusal charges nothing.
    ///
    /// # Errors
    ///
    /// [`Refused`], which knows when to come back.
    pub fn check(&self, now: Time, cost: u64) -> Result<Admitted, Refused> {
        let (mut cell, mut word) = self.in_force();
        loop {
            let after;
            (cell, word, after) = cell.decide(word, now, cost)?;
            match cell.swap(word, after) {
                Ok(()) => {
                    return Ok(Admitted {
                        standing: Standing::new(cell.supply, after, now),
                        charge: Charge { at: now, cost, generation: cell.generation },
                    });
                }
                Err(moved_on) => (cell, word) = moved_on,
            }
        }
    }

    /// What [`check`](Self::check) would say, charging nothing.
    pub(crate) fn ask(&self, now: Time, cost: u64) -> Result<Standing, Refused> {
        let (cell, word) = self.in_force();
        let (cell, word, _) = cell.decide(word, now, cost)?;
        Ok(Standing::new(cell.supply, word, now))
    }

    /// Where the limiter stands, charging nothing.
    pub fn peek(&self, now: Time) -> Standing {
        let (cell, word) = self.in_force();
        Standing::new(cell.supply, word, now)
    }

    /// The quota in force.
    pub fn quota(&self) -> Quota {
        self.in_force().0.supply.quota()
    }

    /// Gives back a charge of this limiter.
    ///
    /// At once, it leaves no trace; later, what has flowed in since the charge is not given back, because the place that
    /// the charge took may have been lost meanwhile. So after the end of its window, or once it is refilled anyway, a
    /// charge gives back nothing, and neither does it after a retune.
    ///
    /// `clock` is read after the state: only so is its time not earlier than that of any charge in it. Let it read the
    /// clock, not repeat an earlier reading.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?);
    /// let admitted = limiter.check(now, 2).expect("all of the burst is free");
    /// limiter.refund(admitted.charge, || now);
    /// assert_eq!(limiter.peek(now).remaining(), 2);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "a charge is given back once")]
    pub fn refund(&self, charge: Charge, clock: impl Fn() -> Time) {
        let (mut cell, mut word) = self.in_force();
        while cell.generation == charge.generation {
            let after = cell.supply.refund(word, charge.at, clock(), charge.cost);
            if after == word {
                return;
            }
            match cell.swap(word, after) {
                Ok(()) => return,
                Err(moved_on) => (cell, word) = moved_on,
            }
        }
    }

    /// Puts another quota in force and keeps what was consumed, while other threads go on deciding.
    ///
    /// What is free afterwards is at most what was free before, in requests and as a share of the burst, and refills at
    /// the new rate. An equal quota touches nothing.
    ///
    /// The limiter returned starts at the new quota. All others of the same state follow to it, one step for each retune
    /// that came since they were made: drop them when you can. `clock` is read after the state, as for
    /// [`refund`](Self::refund).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    /// let limiter = Limiter::new(now, per_second(10)?);
    /// limiter.check(now, 10).expect("all of the burst is free");
    /// let limiter = limiter.retune(|| now, per_second(1000)?);
    /// assert!(limiter.check(now, 1).is_err()); // no fresh burst
    /// assert!(limiter.check(now.saturating_add(Duration::from_millis(1)), 1).is_ok()); // but the new rate
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    #[must_use = "the limiter it is called on stays behind the new one by a step"]
    pub fn retune(&self, clock: impl Fn() -> Time, quota: Quota) -> Self {
        let mut cell = &self.cell;
        loop {
            let guard = lock(&cell.retuning);
            let word = cell.word.load(Ordering::Acquire);
            if word & SEALED != 0 {
                drop(guard);
                cell = cell.follow(word);
            } else if cell.supply.quota() == quota {
                return Self { cell: Arc::clone(cell) };
            } else {
                return Self { cell: Arc::clone(cell.succeed(word, quota, clock)) };
            }
        }
    }

    /// The cell in force and its level.
    fn in_force(&self) -> (&Cell, u64) {
        let word = self.cell.word.load(Ordering::Acquire);
        self.cell.at(word)
    }
}

impl Cell {
    fn new(supply: Supply, generation: u64, word: u64) -> Self {
        Self {
            supply,
            generation,
            word: AtomicU64::new(word),
            since: AtomicU64::new(0),
            successor: Once::empty(),
            retuning: Mutex::new(()),
        }
    }

    /// Seals the word and returns the successor. Only for the holder of `retuning`.
    fn succeed(&self, mut word: u64, quota: Quota, clock: impl Fn() -> Time) -> &Arc<Self> {
        self.successor.fill(Arc::new(Self::new(Supply::new(quota, clock()), self.generation + 1, UNSET)));
        let successor = self.successor.get().expect("filled above");
        loop {
            // Not earlier than any charge in the word that is sealed.
            successor.since.store(clock().as_nanos(), Ordering::Relaxed);
            match self.word.compare_exchange_weak(word, word | SEALED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.follow(word),
                Err(moved_on) => word = moved_on,
            }
        }
    }

    /// The cell in force and its level, as seen from this cell with this word.
    fn at(&self, mut word: u64) -> (&Self, u64) {
        let mut cell = self;
        while word & SEALED != 0 {
            cell = cell.follow(word);
            word = cell.word.load(Ordering::Acquire);
        }
        (cell, word)
    }

    /// The successor, with a level. `sealed` is the final word of this cell.
    fn follow(&self, sealed: u64) -> &Arc<Self> {
        let successor = self.successor.get().expect("the successor is there before the word is sealed");
        if successor.word.load(Ordering::Acquire) == UNSET {
            let since = Time::from_nanos(successor.since.load(Ordering::Relaxed));
            let level = successor.supply.carry_over(&self.supply, sealed & !SEALED, since);
            // If it fails another thread was faster, with the same level.
            let _ = successor.word.compare_exchange(UNSET, level, Ordering::AcqRel, Ordering::Acquire);
        }
        successor
    }

    /// The cell in force, its level, and the level after the charge.
    fn decide(&self, word: u64, now: Time, cost: u64) -> Result<(&Self, u64, u64), Refused> {
        let (mut cell, mut word) = (self, word);
        loop {
            if let Some(after) = cell.supply.charge(word, now, cost) {
                return Ok((cell, word, after));
            }
            let Some(restart) = cell.supply.after_set_back(word, now) else {
                return Err(Refused { standing: Standing::new(cell.supply, word, now), cost });
            };
            (cell, word) = cell.swap(word, restart).err().unwrap_or((cell, restart));
        }
    }

    /// Moves the level on. If it is not `from` any more: the cell in force and its level.
    ///
    /// The order acquired and released is that of clock readings: one taken after a level was read is not earlier than
    /// those that went into it. See [`Limiter::refund`].
    fn swap(&self, from: u64, to: u64) -> Result<(), (&Self, u64)> {
        match self.word.compare_exchange_weak(from, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(word) => Err(self.at(word)),
        }
    }
}

impl Drop for Cell {
    /// One by one: the drop of a long chain must not be as deep as the chain.
    fn drop(&mut self) {
        let mut next = self.successor.take();
        while let Some(cell) = next {
            next = Arc::into_inner(cell).and_then(|mut last| last.successor.take());
        }
    }
}

/// A request that was let through.
#[derive(Debug)]
pub struct Admitted {
    /// Where the limiter stands, this request counted.
    pub standing: Standing,
    /// What can be given back.
    pub charge: Charge,
}

/// What a limiter was charged for one request: for [`Limiter::refund`], once.
#[derive(Debug)]
pub struct Charge {
    pub(crate) at: Time,
    pub(crate) cost: u64,
    pub(crate) generation: u64,
}

/// A request that was not let through. It was charged nothing.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// Where the limiter stood.
    pub standing: Standing,
    /// What the request would have cost.
    pub cost: u64,
}

impl Refused {
    /// How long until the request would be admitted, if nothing else is; none if it never will be, because its cost
    /// exceeds the burst.
    pub fn retry_after(&self) -> Option<Duration> {
        self.standing.retry_after(self.cost)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after() {
            Some(wait) => write!(f, "over the limit: retry after {wait:?}"),
            None => {
                write!(f, "a cost of {} exceeds the burst of {}", self.cost, self.standing.quota().burst())
            }
        }
    }
}

impl Error for Refused {}
