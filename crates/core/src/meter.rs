//! One limit: the arithmetic of its quota, and the atomic steps on the few *words* of its state. A word is 64 bits that
//! threads change by one atomic step. A limiter or a cell in a table of keys owns the words. No decision allocates
//! memory or reads a clock. No decision waits, except that a log can yield a few times before it refuses.
//!
//! If all words are zero, the whole burst is free. A change of the quota creates a new meter with new words, and sets
//! the top bit of the old words. These words are *sealed*: no charge can change them. The first thread that needs the
//! new words computes them from the old words. If several threads do so, they compute the same words.

mod counter;
mod epoch;
mod guarded;
mod history;
mod journal;
pub(crate) mod level;
mod log;
mod outcome;

use self::epoch::Epoch;
pub(crate) use self::{
    counter::WindowCounter,
    guarded::Guarded,
    history::{History, Memory},
    journal::{Journal, SharedJournal, recorded_until},
    log::Log,
    outcome::{Receipt, Stop, Taken, When},
};
use crate::{
    Quota, Standing, Strategy, Time,
    supply::{Supply, Tokens},
    sync::{AtomicU64, Ordering},
    word::{SEALED, Sealed, UNSET, load, set},
};

/// The arithmetic of one quota.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    pub(crate) kind: Kind,
}

/// The kind of state. Strategies of one kind differ only in arithmetic.
#[derive(Clone, Debug)]
#[repr(u8)] // an explicit tag: a tag in a niche of another field takes four more instructions
pub(crate) enum Kind {
    /// A state of one word.
    Level(Supply),
    /// A state of two words.
    Counter(WindowCounter),
    /// A state of three words, and one for each request.
    Log(Log),
    /// Words that are guarded by a lock.
    Guarded(Guarded),
}

impl Meter {
    pub(crate) fn new(quota: Quota, base: Time) -> Self {
        let kind = match quota.strategy() {
            Strategy::SlidingWindowCounter => Kind::Counter(WindowCounter::new(quota, base)),
            Strategy::SlidingWindowLog => Kind::Log(Log::new(quota)),
            Strategy::FixedWindow
            | Strategy::TokenBucket
            | Strategy::TokenBucketWithDebt
            | Strategy::LeakyBucket
            | Strategy::Gcra => Kind::Level(Supply::new(quota, base)),
        };
        Self { kind }
    }

    pub(crate) fn quota(&self) -> Quota {
        match &self.kind {
            Kind::Level(supply) => supply.quota(),
            Kind::Counter(counter) => counter.quota(),
            Kind::Log(log) => log.quota(),
            Kind::Guarded(guarded) => guarded.quota(),
        }
    }

    /// Returns the number of words of the state.
    pub(crate) fn words(&self) -> usize {
        match &self.kind {
            Kind::Level(_) => 1,
            Kind::Counter(_) => 2,
            Kind::Log(log) => log.words(),
            Kind::Guarded(guarded) => guarded.words(),
        }
    }

    /// Returns a copy of the words, for a forecast.
    pub(crate) fn copy(&self, words: &[AtomicU64]) -> Result<Vec<u64>, Sealed> {
        // Only the first word of a log is ever sealed. Its other words use the same bit.
        let sealed = if let Kind::Log(_) = self.kind { 1 } else { self.words() };
        let (first, others) = words[..self.words()].split_at(sealed);
        let mut copy = first.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        copy.extend(others.iter().map(|word| word.load(Ordering::SeqCst)));
        Ok(copy)
    }

    /// Returns true if a sum of costs is admitted at the same time as its last part, when the parts are admitted one
    /// after the other. This is true if levels are times, because rounding then delays no part by a fraction of a
    /// nanosecond.
    pub(crate) fn is_additive(&self) -> bool {
        matches!(&self.kind, Kind::Level(supply) if supply.is_time())
    }

    /// Charges a sum of costs, even beyond the limit. The limit must be [additive](Self::is_additive), and no other
    /// thread may write.
    pub(crate) fn add(&self, words: &[AtomicU64], now: Time, cost: u64) {
        if let Kind::Level(supply) = &self.kind {
            let level = words[0].load(Ordering::Relaxed);
            words[0].store(supply.add(level, now, cost), Ordering::Relaxed);
        }
    }

    /// Returns true if this cost exceeds the capacity of a leaky bucket.
    pub(crate) fn overflows(&self, words: &[AtomicU64], now: Time, cost: u64) -> bool {
        matches!(&self.kind, Kind::Level(supply) if supply.overflows(words[0].load(Ordering::Relaxed), now, cost))
    }

    /// Charges a cost if there is room now. A refusal writes nothing.
    #[inline]
    pub(crate) fn charge(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Taken, Stop> {
        match &self.kind {
            Kind::Level(supply) => level::charge(supply, &words[0], now, cost),
            Kind::Counter(counter) => counter.charge(words, now, cost),
            Kind::Log(log) => log.charge(words, now, cost),
            Kind::Guarded(guarded) => guarded.reserve(words, now, cost, now),
        }
    }

    /// Charges a cost if there is room by `latest`. Returns the time at which there is room.
    pub(crate) fn reserve(&self, words: &[AtomicU64], now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
        match &self.kind {
            Kind::Level(supply) => level::reserve(supply, &words[0], now, cost, latest),
            Kind::Counter(counter) => counter.reserve(words, now, cost, latest),
            Kind::Log(log) => log.reserve(words, now, cost, latest),
            Kind::Guarded(guarded) => guarded.reserve(words, now, cost, latest),
        }
    }

    /// Charges as much as possible of a cost that was already incurred: never refused. A strategy without a level is
    /// charged until it is used up.
    pub(crate) fn incur(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Taken, Stop> {
        if let Kind::Level(supply) = &self.kind {
            return level::incur(supply, &words[0], now, cost);
        }
        loop {
            let standing = self.standing(words, now)?;
            let cost = cost.min(standing.remaining());
            if cost == 0 {
                return Ok(Taken { at: now, standing, receipt: Receipt::NONE });
            }
            match self.charge(words, now, cost) {
                // Another thread was faster.
                Err(Stop::Refused(refused)) if refused.remaining() < cost => {}
                Err(Stop::Refused(standing)) => return Ok(Taken { at: now, standing, receipt: Receipt::NONE }),
                decided => return decided,
            }
        }
    }

    /// Charges a request that takes its units at this time.
    #[inline]
    pub(crate) fn take(&self, words: &[AtomicU64], now: Time, cost: u64, when: When) -> Result<Taken, Stop> {
        match when {
            When::Now => self.charge(words, now, cost),
            When::By(latest) => self.reserve(words, now, cost, latest),
            When::Incurred => self.incur(words, now, cost),
        }
    }

    /// Returns the result that [`charge`](Self::charge) would return, and charges nothing.
    pub(crate) fn peek(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Stop> {
        match &self.kind {
            Kind::Level(supply) => level::peek(supply, &words[0], now, cost),
            Kind::Counter(counter) => counter.peek(words, now, cost),
            Kind::Log(log) => log.peek(words, now, cost),
            Kind::Guarded(guarded) => guarded.peek(words, now, cost),
        }
    }

    pub(crate) fn standing(&self, words: &[AtomicU64], now: Time) -> Result<Standing, Sealed> {
        match &self.kind {
            Kind::Level(supply) => level::standing(supply, &words[0], now),
            Kind::Counter(counter) => counter.standing(words, now),
            Kind::Log(log) => log.standing(words, now, 1),
            Kind::Guarded(guarded) => guarded.standing(words, now),
        }
    }

    /// Gives back a charge. `clock` is called after the state was read.
    pub(crate) fn refund(
        &self,
        words: &[AtomicU64],
        receipt: &Receipt,
        clock: &impl Fn() -> Time,
    ) -> Result<(), Sealed> {
        match &self.kind {
            Kind::Level(supply) => level::refund(supply, &words[0], receipt, clock),
            Kind::Counter(counter) => counter.refund(words, receipt),
            Kind::Log(log) => log.refund(words, receipt),
            Kind::Guarded(guarded) => guarded.refund(words, receipt),
        }
    }

    /// Takes back units of any earlier charges, as if the newest charges had been smaller. A limit has at most its full
    /// credit. `clock` is called after the state was read.
    pub(crate) fn credit(&self, words: &[AtomicU64], cost: u64, clock: &impl Fn() -> Time) -> Result<(), Sealed> {
        match &self.kind {
            Kind::Level(supply) => level::credit(supply, &words[0], cost, clock),
            Kind::Counter(counter) => counter.credit(words, cost, clock()),
            Kind::Log(log) => log.credit(words, cost, clock),
            Kind::Guarded(guarded) => guarded.credit(words, cost, clock()),
        }
    }

    /// Returns true if the whole burst is free, now and at any later time, so that forgetting the words gives no early
    /// tokens. False if the words are sealed or unset.
    pub(crate) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        match &self.kind {
            Kind::Level(supply) => load(&words[0]).is_ok_and(|level| supply.is_idle(level, now)),
            Kind::Counter(counter) => counter.is_idle(words, now),
            Kind::Log(log) => log.is_idle(words, now),
            Kind::Guarded(guarded) => guarded.is_idle(words, now),
        }
    }

    /// Seals the words.
    pub(crate) fn seal(&self, words: &[AtomicU64]) {
        let sealed = match self.kind {
            Kind::Counter(_) => 2,
            Kind::Level(_) | Kind::Log(_) => 1,
            // The lock keeps charges out, and a packed word has no free bit for a seal.
            Kind::Guarded(_) => 0,
        };
        for word in &words[..sealed] {
            word.fetch_or(SEALED, Ordering::SeqCst);
        }
    }

    /// Initializes unset words, so that the whole burst is free.
    pub(crate) fn start(&self, words: &[AtomicU64]) {
        // The exchange fails if another thread was faster and stored the state.
        let _ = words[0].compare_exchange(UNSET, 0, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Returns the history at `since`, when this meter replaces a meter with these sealed words. The history also
    /// contains the first words of this meter. `since` is not earlier than any charge in the old words. `history`
    /// contains the admissions before the old words.
    ///
    /// State is kept as a number of requests. A window or a log continues with the requests that were admitted in its
    /// period, under any strategy. A bucket continues with the remaining tokens, up to its burst. Debts stay the same
    /// number of requests.
    pub(crate) fn history_after(
        &self,
        old: &Self,
        (old_words, journal): (&[AtomicU64], Option<&Journal>),
        history: &History,
        since: Time,
        memory: Memory,
    ) -> History {
        let (mut epoch, tokens) = old.epoch(old_words, history, since);
        if let Some(journal) = journal {
            epoch.learn(journal.admitted());
        }
        // A log starts with the times of the previous requests.
        let spans = match (memory, &self.kind) {
            (Memory::None, Kind::Level(_) | Kind::Counter(_) | Kind::Guarded(_)) => Vec::new(),
            (Memory::Few, Kind::Level(_) | Kind::Counter(_)) => epoch.after(history, memory),
            _ => epoch.after(history, Memory::Many),
        };
        let began = since.as_nanos();
        let windows_since = history.windows_since_after(old.quota(), began);
        let mut next = History { began, windows_since, first: [0; 2], tokens, forgiven: 0, spans };
        let admitted_since = |moment: u64| {
            let before = if moment <= epoch.began { history.admitted_since(moment) } else { 0 };
            epoch.admitted_since(moment).saturating_add(before)
        };
        if history.forgiven > 0 {
            next.tokens = history.unforgiven(tokens);
        }
        match (&self.kind, &old.kind) {
            (Kind::Level(supply), Kind::Level(before)) if supply.has_windows_of(before) => {
                let level = old_words[0].load(Ordering::SeqCst) & !SEALED;
                next.first = [supply.same_window(before, level, since), 0];
            }
            (Kind::Level(supply), _) if supply.is_window() => {
                let used = admitted_since(supply.start_of_window(since)).saturating_sub(epoch.reserved);
                next.first = [supply.with_used(used, epoch.reserved, since), 0];
            }
            (Kind::Level(supply), _) => {
                let tokens = match &old.kind {
                    Kind::Level(window) if window.is_window() && epoch.reserved == 0 => {
                        let end = window.start_of_window(since).saturating_add(old.quota().period_nanos());
                        next.forgive(self.quota(), end.saturating_sub(since.as_nanos()))
                    }
                    Kind::Level(bucket) if !bucket.is_window() => {
                        next.forgiven = history.forgiven;
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

    /// Returns the tokens that a bucket would have left for an unknown key: as many as this meter admits together, or
    /// the tokens in the start words of such keys.
    pub(crate) fn tokens_at_start(&self, words: &[AtomicU64], now: Time) -> Tokens {
        match &self.kind {
            Kind::Level(supply) if !supply.is_window() => supply.tokens(words[0].load(Ordering::Relaxed), now),
            _ => Tokens { parts: i128::from(self.quota().requests()), unit: 1 },
        }
    }

    /// Starts a bucket with these tokens.
    pub(crate) fn start_with(&self, words: &[AtomicU64], tokens: Tokens, now: Time) {
        if let Kind::Level(supply) = &self.kind
            && !supply.is_window()
        {
            words[0].store(supply.with_tokens(tokens, now), Ordering::Relaxed);
        }
    }

    /// Raises the level to the level of other words. These words must not be charged yet.
    pub(crate) fn raise(&self, words: &[AtomicU64], to: &[AtomicU64]) {
        if let Kind::Level(_) = &self.kind {
            words[0].fetch_max(to[0].load(Ordering::Relaxed), Ordering::SeqCst);
        }
    }

    /// Returns true if the words of this meter contain less information than the words of the old meter.
    pub(crate) fn forgets(&self, old: &Self) -> bool {
        match (&self.kind, &old.kind) {
            (Kind::Level(supply), Kind::Level(before)) if supply.is_window() => !supply.has_windows_of(before),
            (Kind::Level(_), Kind::Level(before)) => before.is_window(),
            (Kind::Counter(counter), Kind::Counter(before)) => !counter.same_windows(before),
            (Kind::Log(log), Kind::Log(before)) => log.quota() != before.quota(),
            _ => true,
        }
    }

    /// Computes `words`, of which the first is [`UNSET`] and the others are zero. This meter replaces `old`, whose
    /// words are sealed.
    pub(crate) fn begin(&self, words: &[AtomicU64], history: &History, old: &Self, old_words: &[AtomicU64]) {
        match (&self.kind, &old.kind) {
            (Kind::Level(_), _) => set(&words[0], history.first[0]),
            (Kind::Counter(_), _) => {
                // The first word is written last, because it marks both words as set. The second word is never zero
                // again.
                let _ = words[1].compare_exchange(0, history.first[1], Ordering::SeqCst, Ordering::SeqCst);
                set(&words[0], history.first[0]);
            }
            (Kind::Log(log), Kind::Log(before)) => log.begin_from_log(words, history, before, old_words),
            (Kind::Log(log), _) => log.begin(words, history, Vec::new()),
            (Kind::Guarded(guarded), _) => guarded.begin(words, history, old, old_words),
        }
    }

    /// Returns the admissions under this meter, according to its sealed words, and the tokens that a bucket would have
    /// left.
    fn epoch(&self, words: &[AtomicU64], history: &History, since: Time) -> (Epoch<'_>, Tokens) {
        let at = since.as_nanos();
        match &self.kind {
            Kind::Level(supply) => {
                let level = words[0].load(Ordering::SeqCst) & !SEALED;
                if !supply.is_window() {
                    return (Epoch::of_bucket(supply, level, history, at), supply.tokens(level, since));
                }
                let epoch = Epoch::of_window(supply, level, history, at);
                let left = match epoch.reserved {
                    0 => i128::from(supply.left_in_window(level, since)),
                    reserved => -i128::from(reserved),
                };
                let tokens = history.tokens_after(self.quota(), at, epoch.total, left);
                (epoch, tokens)
            }
            Kind::Counter(counter) => {
                let (epoch, left) = counter.epoch(words, history, since);
                let tokens = history.tokens_after(self.quota(), at, epoch.total, i128::from(left));
                (epoch, tokens)
            }
            Kind::Log(log) => {
                let (epoch, left) = log.epoch(words, history, since);
                let tokens = history.tokens_after(self.quota(), at, epoch.total, i128::from(left));
                (epoch, tokens)
            }
            Kind::Guarded(guarded) => {
                let (epoch, left) = guarded.epoch(words, history, since);
                let tokens = history.tokens_after(self.quota(), at, epoch.total, i128::from(left));
                (epoch, tokens)
            }
        }
    }
}
