//! One limit: the arithmetic of its quota, and the atomic steps on the few words that are its state. Who owns the words,
//! a limiter or a cell in a table of keys, does not matter here; nothing here allocates or reads a clock, and
//! nothing waits but a log, for a few turns of the scheduler, before it refuses.
//!
//! Words that are all zero have all of the burst free. A change of the quota makes a new meter over new words: the old
//! ones are *sealed* with their top bit, which no charge can pass any more; then whoever comes first works out the new
//! ones from them, and all that try get the same.

mod counter;
mod guarded;
pub(crate) mod line;
mod log;

pub(crate) use self::counter::{Counter, Windows};
pub(crate) use self::guarded::Guarded;
pub(crate) use self::log::Log;
use crate::supply::Supply;
use crate::sync::{AtomicU64, Ordering};
use crate::{Quota, Standing, Strategy, Time};

/// Set in words that are final, because there is a successor.
pub(crate) const SEALED: u64 = 1 << 63;

/// The first word of a successor whose state nobody has worked out yet. No state and no sealed state looks like it.
pub(crate) const UNSET: u64 = u64::MAX;

/// How one limit is counted.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    pub(crate) kind: Kind,
}

/// By what: strategies of one kind differ only in arithmetic.
#[derive(Clone, Debug)]
#[repr(u8)] // a tag of its own: to tell it from what a number beside it cannot be takes four instructions more
pub(crate) enum Kind {
    /// One word.
    Line(Supply),
    /// Two.
    Counter(Counter),
    /// A word, and one for each request.
    Log(Log),
    /// Words that a lock guards.
    Guarded(Guarded),
}

/// A charge that was made.
#[derive(Debug)]
pub(crate) struct Taken {
    /// When it may go.
    pub(crate) at: Time,
    pub(crate) standing: Standing,
    pub(crate) place: Place,
}

/// What giving it back needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// When it was charged.
    pub(crate) at: Time,
    pub(crate) cost: u64,
    /// The level after it, the window, or the number of requests before it.
    pub(crate) mark: u64,
}

impl Place {
    pub(crate) const NONE: Self = Self { at: Time::from_nanos(0), cost: 0, mark: 0 };
}

/// Why nothing was charged.
#[derive(Debug)]
pub(crate) enum Stop {
    Refused(Standing),
    Sealed,
}

/// The words are final, or not worked out yet: the successor is to be asked, or helped.
#[derive(Debug)]
pub(crate) struct Sealed;

impl From<Sealed> for Stop {
    fn from(_: Sealed) -> Self {
        Self::Sealed
    }
}

/// What is free when a quota is changed: `left` / `unit` requests of `burst`.
#[derive(Clone, Copy, Debug)]
struct Left {
    left: u64,
    unit: u64,
    burst: u64,
}

impl Left {
    /// Whole requests that may be free of another burst: no more, and no larger share.
    fn requests_of(self, burst: u64) -> u64 {
        let share = u128::from(self.left) * u128::from(burst.min(self.burst)) / u128::from(self.burst);
        u64::try_from(share / u128::from(self.unit)).unwrap_or(u64::MAX).min(burst)
    }
}

impl Meter {
    pub(crate) fn new(quota: Quota, base: Time) -> Self {
        let kind = match quota.strategy() {
            Strategy::SlidingWindowCounter => Kind::Counter(Counter::new(quota, base)),
            Strategy::SlidingWindowLog => Kind::Log(Log::new(quota)),
            Strategy::FixedWindow
            | Strategy::TokenBucket
            | Strategy::TokenBucketWithDebt
            | Strategy::LeakyBucket
            | Strategy::Gcra => Kind::Line(Supply::new(quota, base)),
        };
        Self { kind }
    }

    pub(crate) fn quota(&self) -> Quota {
        match &self.kind {
            Kind::Line(supply) => supply.quota(),
            Kind::Counter(counter) => counter.quota(),
            Kind::Log(log) => log.quota(),
            Kind::Guarded(guarded) => guarded.quota(),
        }
    }

    /// How many words the state takes.
    pub(crate) fn words(&self) -> usize {
        match &self.kind {
            Kind::Line(_) => 1,
            Kind::Counter(_) => 2,
            Kind::Log(log) => log.words(),
            Kind::Guarded(guarded) => guarded.words(),
        }
    }

    /// The words as they are, to go on with elsewhere.
    pub(crate) fn copy(&self, words: &[AtomicU64]) -> Result<Vec<u64>, Sealed> {
        // Of a log the first is sealed alone; others use the same bit.
        let sealed = if let Kind::Log(_) = self.kind { 1 } else { self.words() };
        let (first, others) = words[..self.words()].split_at(sealed);
        let mut copy = first.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        copy.extend(others.iter().map(|word| word.load(Ordering::SeqCst)));
        Ok(copy)
    }

    /// Whether a sum of costs is admitted when its parts are, one after the other: where levels are times, so that no part
    /// goes a fraction of a nanosecond later than it could.
    pub(crate) fn is_additive(&self) -> bool {
        matches!(&self.kind, Kind::Line(supply) if supply.is_time())
    }

    /// Charges a sum of costs, however much there is room for. Only where sums [are all that matters](Self::is_additive),
    /// and nothing else writes.
    pub(crate) fn add(&self, words: &[AtomicU64], now: Time, cost: u64) {
        if let Kind::Line(supply) = &self.kind {
            let level = words[0].load(Ordering::Relaxed);
            words[0].store(supply.add(level, now, cost), Ordering::Relaxed);
        }
    }

    /// Whether this cost is more than a leaky bucket holds.
    pub(crate) fn overflows(&self, words: &[AtomicU64], now: Time, cost: u64) -> bool {
        matches!(&self.kind, Kind::Line(supply) if supply.overflows(words[0].load(Ordering::Relaxed), now, cost))
    }

    /// Charges if there is room now. A refusal writes nothing.
    #[inline]
    pub(crate) fn check(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Taken, Stop> {
        match &self.kind {
            Kind::Line(supply) => line::check(supply, &words[0], now, cost),
            Kind::Counter(counter) => counter.check(words, now, cost),
            Kind::Log(log) => log.check(words, now, cost),
            Kind::Guarded(guarded) => guarded.reserve(words, now, cost, now),
        }
    }

    /// Charges if there is room until `latest`, and says when.
    pub(crate) fn reserve(&self, words: &[AtomicU64], now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
        match &self.kind {
            Kind::Line(supply) => line::reserve(supply, &words[0], now, cost, latest),
            Kind::Counter(counter) => counter.reserve(words, now, cost, latest),
            Kind::Log(log) => log.reserve(words, now, cost, latest),
            Kind::Guarded(guarded) => guarded.reserve(words, now, cost, latest),
        }
    }

    /// What [`check`](Self::check) would say, charging nothing.
    pub(crate) fn ask(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Stop> {
        match &self.kind {
            Kind::Line(supply) => line::ask(supply, &words[0], now, cost),
            Kind::Counter(counter) => counter.ask(words, now, cost),
            Kind::Log(log) => log.ask(words, now, cost),
            Kind::Guarded(guarded) => guarded.ask(words, now, cost),
        }
    }

    pub(crate) fn standing(&self, words: &[AtomicU64], now: Time) -> Result<Standing, Sealed> {
        match &self.kind {
            Kind::Line(supply) => line::standing(supply, &words[0], now),
            Kind::Counter(counter) => counter.standing(words, now),
            Kind::Log(log) => log.standing(words, now, 1),
            Kind::Guarded(guarded) => guarded.standing(words, now),
        }
    }

    /// Gives back. `clock` is read after the state.
    pub(crate) fn refund(&self, words: &[AtomicU64], place: &Place, clock: &impl Fn() -> Time) -> Result<(), Sealed> {
        match &self.kind {
            Kind::Line(supply) => line::refund(supply, &words[0], place, clock),
            Kind::Counter(counter) => counter.refund(words, place),
            Kind::Log(log) => log.refund(words, place),
            Kind::Guarded(guarded) => guarded.refund(words, place),
        }
    }

    /// Whether all of the burst is free, so that forgetting the words refills nothing early, and whoever finds them has
    /// all of it free at any later time. False if they are sealed or unset.
    pub(crate) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        match &self.kind {
            Kind::Line(supply) => load(&words[0]).is_ok_and(|level| supply.is_idle(level, now)),
            Kind::Counter(counter) => counter.is_idle(words, now),
            Kind::Log(log) => log.is_idle(words, now),
            Kind::Guarded(guarded) => guarded.is_idle(words, now),
        }
    }

    /// Makes the words final.
    pub(crate) fn seal(&self, words: &[AtomicU64]) {
        let sealed = match self.kind {
            Kind::Counter(_) => 2,
            Kind::Line(_) | Kind::Log(_) => 1,
            // The lock keeps charges away, and each bit of a packed word is in use.
            Kind::Guarded(_) => 0,
        };
        for word in &words[..sealed] {
            word.fetch_or(SEALED, Ordering::SeqCst);
        }
    }

    /// All of the burst free, in words that nobody has set yet.
    pub(crate) fn start(&self, words: &[AtomicU64]) {
        // Whoever was faster put the state there.
        let _ = words[0].compare_exchange(UNSET, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Works out `words`, whose first is [`UNSET`] and whose others are zero, from sealed ones: this meter takes over at
    /// `since`, which is not earlier than any charge in them.
    ///
    /// What is free afterwards is at most what was free before, in requests and as a share of the burst.
    pub(crate) fn succeed(&self, words: &[AtomicU64], old: &Self, old_words: &[AtomicU64], since: Time) {
        match (&self.kind, &old.kind) {
            (Kind::Line(supply), Kind::Line(before)) => {
                let level = old_words[0].load(Ordering::SeqCst) & !SEALED;
                set(&words[0], supply.carry_over(before, level, since));
            }
            (Kind::Counter(counter), Kind::Counter(before)) if counter.same_windows(before) => {
                counter.take_over(words, before, old_words, since);
            }
            (Kind::Log(log), Kind::Log(before)) => log.take_over(words, before, old_words, since),
            (Kind::Line(supply), _) => {
                let Left { left, unit, burst } = old.left(old_words, since);
                set(&words[0], supply.with_free(left, unit, burst, since));
            }
            (Kind::Counter(counter), _) => counter.begin(words, old.left(old_words, since), since),
            (Kind::Log(log), _) => log.begin(words, old.left(old_words, since), since),
            (Kind::Guarded(guarded), _) => guarded.succeed(words, old, old_words, since),
        }
    }

    /// What sealed words leave free.
    fn left(&self, words: &[AtomicU64], since: Time) -> Left {
        match &self.kind {
            Kind::Line(supply) => line::left(supply, words[0].load(Ordering::SeqCst) & !SEALED, since),
            Kind::Counter(counter) => counter.left(words, since),
            Kind::Log(log) => log.left(words, since),
            Kind::Guarded(guarded) => guarded.left(words, since),
        }
    }
}

/// A state that can be charged.
#[inline]
pub(crate) fn load(word: &AtomicU64) -> Result<u64, Sealed> {
    let state = word.load(Ordering::SeqCst);
    if state & SEALED == 0 { Ok(state) } else { Err(Sealed) }
}

/// The state worked out for an unset word. If another thread was faster, it put the same there.
fn set(word: &AtomicU64, state: u64) {
    let _ = word.compare_exchange(UNSET, state, Ordering::SeqCst, Ordering::SeqCst);
}
