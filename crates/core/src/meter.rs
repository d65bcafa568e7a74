//! One limit: the arithmetic of its quota, and the atomic steps on the few words that are its state. Who owns the words,
//! a limiter or a cell in a table of keys, does not matter here; nothing here allocates or reads a clock, and
//! nothing waits but a log, for a few turns of the scheduler, before it refuses.
//!
//! Words that are all zero have all of the burst free. A change of the quota makes a new meter over new words: the old
//! ones are *sealed* with their top bit, which no charge can pass any more; then whoever comes first works out the new
//! ones from them, and all that try get the same.

mod counter;
mod epoch;
mod guarded;
pub(crate) mod line;
mod log;
mod past;
mod trail;

pub(crate) use self::counter::{Counter, Windows};
use self::epoch::Epoch;
pub(crate) use self::guarded::Guarded;
pub(crate) use self::log::Log;
pub(crate) use self::past::{Memory, Past};
pub(crate) use self::trail::{Trail, Watch, noted_until};
use crate::supply::{Supply, Tokens};
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

    /// What is known of the time before `since`, when this meter takes over from one with these sealed words; and the words
    /// that it begins with. `since` is not earlier than any charge in the old ones, and `past` is what was known before them.
    ///
    /// Everything is kept in requests. A window or a log goes on with what was admitted in its time, by whatever strategy.
    /// A bucket goes on with the tokens that are left, cut to its burst; what is owed stays as many requests.
    pub(crate) fn past_after(
        &self,
        old: &Self,
        (old_words, trail): (&[AtomicU64], Option<&Trail>),
        past: &Past,
        since: Time,
        memory: Memory,
    ) -> Past {
        let (mut epoch, tokens) = old.epoch(old_words, past, since);
        if let Some(trail) = trail {
            epoch.learn(trail.admitted());
        }
        // A log begins with the moments of what came before.
        let spans = match (memory, &self.kind) {
            (Memory::None, Kind::Line(_) | Kind::Counter(_) | Kind::Guarded(_)) => Vec::new(),
            (Memory::Few, Kind::Line(_) | Kind::Counter(_)) => past.with(&epoch, memory),
            _ => past.with(&epoch, Memory::Many),
        };
        let mut next = Past { began: since.as_nanos(), is_first: false, first: [0; 2], tokens, forgiven: 0, spans };
        let admitted_since = |moment: u64| {
            let before = if moment <= epoch.began { past.admitted_since(moment) } else { 0 };
            epoch.admitted_since(moment).saturating_add(before)
        };
        if past.forgiven > 0 {
            next.tokens = past.unforgiven(tokens);
        }
        match (&self.kind, &old.kind) {
            (Kind::Line(supply), Kind::Line(before)) if supply.has_windows_of(before) => {
                let level = old_words[0].load(Ordering::SeqCst) & !SEALED;
                next.first = [supply.same_window(before, level, since), 0];
            }
            (Kind::Line(supply), _) if supply.is_window() => {
                let used = admitted_since(supply.start_of_window(since)).saturating_sub(epoch.reserved);
                next.first = [supply.with_used(used, epoch.reserved, since), 0];
            }
            (Kind::Line(supply), _) => {
                let tokens = match &old.kind {
                    Kind::Line(window) if window.is_window() && epoch.reserved == 0 => {
                        let end = window.start_of_window(since).saturating_add(old.quota().period_nanos());
                        next.forgive(self.quota(), end.saturating_sub(since.as_nanos()))
                    }
                    Kind::Line(bucket) if !bucket.is_window() => {
                        next.forgiven = past.forgiven;
                        tokens
                    }
                    _ => tokens,
                };
                next.first = [supply.with_tokens(tokens, since), 0];
            }
            (Kind::Counter(counter), Kind::Counter(before)) if counter.same_windows(before) => {
                next.first = counter.with_counts_of(before, old_words, since);
            }
            (Kind::Counter(counter), _) => next.first = counter.with_admitted(admitted_since, since),
            (Kind::Log(log), Kind::Log(before)) => log.prepare_from_log(&mut next, before, old_words, since),
            (Kind::Log(log), _) => log.prepare(&mut next, since),
            (Kind::Guarded(guarded), _) => next.first = guarded.first_after(old, old_words, admitted_since, since),
        }
        next
    }

    /// What a bucket would have left for a key of which nothing is known: as much as this meter lets through at once, or what
    /// the words say that such keys begin with.
    pub(crate) fn tokens_at_start(&self, words: &[AtomicU64], now: Time) -> Tokens {
        match &self.kind {
            Kind::Line(supply) if !supply.is_window() => supply.tokens(words[0].load(Ordering::Relaxed), now),
            _ => Tokens { parts: i128::from(self.quota().requests()), unit: 1 },
        }
    }

    /// Begins with these tokens, if it is a bucket.
    pub(crate) fn start_with(&self, words: &[AtomicU64], tokens: Tokens, now: Time) {
        if let Kind::Line(supply) = &self.kind
            && !supply.is_window()
        {
            words[0].store(supply.with_tokens(tokens, now), Ordering::Relaxed);
        }
    }

    /// Raises a level to that of other words. Only for words that are not charged yet.
    pub(crate) fn raise(&self, words: &[AtomicU64], to: &[AtomicU64]) {
        if let Kind::Line(_) = &self.kind {
            words[0].fetch_max(to[0].load(Ordering::Relaxed), Ordering::SeqCst);
        }
    }

    /// Whether the words of this meter do not hold all that those of the old one did.
    pub(crate) fn forgets(&self, old: &Self) -> bool {
        match (&self.kind, &old.kind) {
            (Kind::Line(supply), Kind::Line(before)) if supply.is_window() => !supply.has_windows_of(before),
            (Kind::Line(_), Kind::Line(before)) => before.is_window(),
            (Kind::Counter(counter), Kind::Counter(before)) => !counter.same_windows(before),
            (Kind::Log(log), Kind::Log(before)) => log.quota() != before.quota(),
            _ => true,
        }
    }

    /// Works out `words`, whose first is [`UNSET`] and whose others are zero: this meter takes over from one with these
    /// sealed words.
    pub(crate) fn begin(&self, words: &[AtomicU64], past: &Past, old: &Self, old_words: &[AtomicU64]) {
        match (&self.kind, &old.kind) {
            (Kind::Line(_), _) => set(&words[0], past.first[0]),
            (Kind::Counter(_), _) => {
                // The first word last: it says that both are there. The second is never zero again.
                let _ = words[1].compare_exchange(0, past.first[1], Ordering::SeqCst, Ordering::SeqCst);
                set(&words[0], past.first[0]);
            }
            (Kind::Log(log), Kind::Log(before)) => log.begin_from_log(words, past, before, old_words),
            (Kind::Log(log), _) => log.begin(words, past, Vec::new()),
            (Kind::Guarded(guarded), _) => guarded.begin(words, past, old, old_words),
        }
    }

    /// What was admitted under this meter, as its sealed words tell, and what a bucket would have left.
    fn epoch(&self, words: &[AtomicU64], past: &Past, since: Time) -> (Epoch<'_>, Tokens) {
        let at = since.as_nanos();
        match &self.kind {
            Kind::Line(supply) => {
                let level = words[0].load(Ordering::SeqCst) & !SEALED;
                if !supply.is_window() {
                    return (Epoch::of_bucket(supply, level, past, at), supply.tokens(level, since));
                }
                let epoch = Epoch::of_window(supply, level, past, at);
                let left = match epoch.reserved {
                    0 => i128::from(supply.left_in_window(level, since)),
                    reserved => -i128::from(reserved),
                };
                let tokens = past.tokens_after(self.quota(), at, epoch.total, left);
                (epoch, tokens)
            }
            Kind::Counter(counter) => {
                let (epoch, left) = counter.epoch(words, past, since);
                let tokens = past.tokens_after(self.quota(), at, epoch.total, i128::from(left));
                (epoch, tokens)
            }
            Kind::Log(log) => {
                let (epoch, left) = log.epoch(words, past, since);
                let tokens = past.tokens_after(self.quota(), at, epoch.total, i128::from(left));
                (epoch, tokens)
            }
            Kind::Guarded(guarded) => {
                let (epoch, left) = guarded.epoch(words, past, since);
                let tokens = past.tokens_after(self.quota(), at, epoch.total, i128::from(left));
                (epoch, tokens)
            }
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
