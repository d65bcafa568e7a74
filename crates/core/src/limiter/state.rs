//! The state of a limiter under one quota. `succession` explains the transition to the state under the next quota.

mod succession;

use std::sync::{Arc, OnceLock};

use super::{Admitted, Charge, Refused};
use crate::{
    Standing, Time,
    chain::Chain,
    lease::Leases,
    meter::{
        History, Kind, Log, Meter, Receipt, SharedJournal, Stop, Taken, When, WindowCounter,
        level::{self, swap},
    },
    queue::Queue,
    supply::Supply,
    sync::{AtomicBool, AtomicU64, Mutex, Once, Ordering},
    word::{SEALED, Sealed, load},
};

/// The number of lost races after which threads use leases; see `lease`.
const RACES_BEFORE_LEASES: u64 = if cfg!(loom) { 0 } else { 16 };

/// A number that no window has.
const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct State {
    pub(super) meter: Meter,
    /// The number of earlier retunes. A charge is given back only to the state in which it was made.
    pub(super) retunes: u64,
    /// [`Supply::direct`] if levels are times and there are no leases; otherwise zero.
    direct: AtomicU64,
    /// The window of the last decision: later decisions in this window need no division. [`NEVER`] if the limit has no
    /// windows or has leases. The value is only a hint: each decision compares it with the time.
    window: AtomicU64,
    words: Words,
    /// Set after threads have lost [`RACES_BEFORE_LEASES`] races.
    leases: Once<Leases>,
    /// True after the first credit. It has lowered the word, so the levels of earlier charges can belong to others.
    is_credited: AtomicBool,
    /// The number of races that threads have lost.
    lost_races: AtomicU64,
    /// The time at which this state came into force, in nanoseconds of [`Time`]. Final once the predecessor's first word
    /// is sealed.
    since: AtomicU64,
    /// The admissions before this state, and its first words. A retune sets the history before it sets the words. The
    /// first state has no history. Loom does not check this field, because the words order all accesses to it.
    history: OnceLock<Box<History>>,
    /// The journal after a change. The first state has no journal.
    journal: Option<Box<JournalState>>,
    /// The link to the successor, which is set before the words are sealed.
    chain: Chain<State>,
    /// The waiting requests of this state and all its successors. Set by the first request that waits.
    queue: Once<Arc<Queue>>,
    /// Held by the thread that links the successor and seals the words.
    pub(super) retuning: Mutex<()>,
}

/// A journal and its end. Until the journal ends, no decision takes the fast path.
#[derive(Debug)]
struct JournalState {
    journal: SharedJournal,
    is_over: AtomicBool,
    /// Set by the thread that ends the journal.
    is_ending: AtomicBool,
}

/// The words of one limit. One or two words are stored in this type itself.
#[derive(Debug)]
struct Words {
    few: OwnCacheLine,
    /// The words, if there are more than two; empty otherwise.
    many: Box<[AtomicU64]>,
}

/// Words on separate cache lines: fields that never change must not share a cache line with words that change often.
#[derive(Debug)]
#[repr(align(128))]
struct OwnCacheLine([AtomicU64; 2]);

impl State {
    pub(super) fn new(meter: Meter, since: Time) -> Self {
        let state = Self::with(meter, 0, 0, since, None, Chain::first());
        state.enable_fast_path();
        state
    }

    fn with(
        meter: Meter,
        retunes: u64,
        first: u64,
        since: Time,
        journal: Option<SharedJournal>,
        chain: Chain<Self>,
    ) -> Self {
        let words = Words::new(meter.words(), first);
        Self {
            meter,
            retunes,
            direct: AtomicU64::new(0),
            window: AtomicU64::new(NEVER),
            words,
            leases: Once::empty(),
            is_credited: AtomicBool::new(false),
            lost_races: AtomicU64::new(0),
            since: AtomicU64::new(since.as_nanos()),
            history: OnceLock::new(),
            journal: journal.map(JournalState::new).map(Box::new),
            chain,
            queue: Once::empty(),
            retuning: Mutex::new(()),
        }
    }

    /// Enables the fast path if the quota allows it. Called only while there are no leases.
    fn enable_fast_path(&self) {
        let (direct, window) = match &self.meter.kind {
            Kind::Level(supply) if supply.is_time() => (supply.direct(), NEVER),
            Kind::Level(supply) if supply.is_window() && supply.direct() > 0 => (0, 0),
            _ => (0, NEVER),
        };
        self.direct.store(direct, Ordering::Relaxed);
        self.window.store(window, Ordering::Relaxed);
    }

    /// Returns the journal if it must record a charge at this time.
    fn journal(&self, now: Time) -> Option<&SharedJournal> {
        let JournalState { journal, is_over, is_ending } = self.journal.as_deref()?;
        if journal.is_on(now) {
            return Some(journal);
        }
        if !is_over.load(Ordering::Acquire) && !is_ending.swap(true, Ordering::Relaxed) {
            self.enable_fast_path();
            is_over.store(true, Ordering::Release);
        }
        None
    }

    #[inline(always)]
    fn has_journal(&self) -> bool {
        self.journal.as_ref().is_some_and(|state| !state.is_over.load(Ordering::Acquire))
    }

    /// Decides, and records the charge if there is a journal.
    fn recording(
        &self,
        now: Time,
        (at, cost): (Time, u64),
        decide: impl FnOnce() -> Result<Taken, Stop>,
    ) -> Result<Taken, Stop> {
        let Some(journal) = self.journal(now) else { return decide() };
        journal.with(|journal| journal.note(at, cost));
        let decided = decide();
        journal.with(|journal| journal.settle(cost, decided.is_ok()));
        decided
    }

    pub(super) fn known_queue(&self) -> Option<&Arc<Queue>> {
        self.queue.get()
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        if self.queue.get().is_none() {
            self.queue.fill(Arc::default());
        }
        self.queue.get().expect("filled above")
    }

    /// Returns a copy of the limit in its current state, for a forecast.
    pub(super) fn copy(&self, now: Time) -> Result<(Meter, Vec<u64>), Sealed> {
        let mut words = self.meter.copy(self.words.all())?;
        if let (Kind::Level(supply), Some(leases)) = (&self.meter.kind, self.leases.get()) {
            let floor = supply.floor(now);
            words[0] = words[0].max(floor).saturating_sub(leases.left(supply, floor));
        }
        Ok((self.meter.clone(), words))
    }

    fn first(&self) -> &AtomicU64 {
        &self.words.all()[0]
    }

    /// The fast path of a decision. None if the decision needs the slow path.
    #[inline(always)] // for the same reason as `Limiter::charge`
    pub(super) fn charge_at_once(&self, now: Time, cost: u64) -> Option<Result<Admitted, Refused>> {
        let supply = match &self.meter.kind {
            Kind::Level(supply) => supply,
            Kind::Counter(counter) => return self.count_at_once(counter, now, cost),
            Kind::Log(log) => return self.log_at_once(log, now, cost),
            Kind::Guarded(_) => return None, // not in a limiter: a guarded meter needs a lock
        };
        // If levels are times, as for most quotas, the first comparison selects the path. With leases, the second
        // comparison does.
        let elapsed = supply.elapsed(now);
        if elapsed < self.direct.load(Ordering::Relaxed) {
            return self.level_at_once(supply, elapsed, now, cost, Supply::charge_at_once);
        }
        let window = self.window.load(Ordering::Relaxed);
        if window == NEVER {
            if let Some(leases) = self.leases.get() {
                return self.lease_at_once(supply, leases, elapsed, now, cost);
            }
            if self.has_journal() {
                return None;
            }
        } else if let Some(floor) = supply.flowed_in(window, elapsed) {
            return self.level_at_once(supply, floor, now, cost, Supply::charge_in_window);
        }
        if elapsed >= supply.direct() {
            return None;
        }
        self.level_at_once(supply, self.flowed(supply, elapsed), now, cost, Supply::charge_at_once)
    }

    /// Computes the floor by a division, and stores the window.
    #[inline(never)]
    fn flowed(&self, supply: &Supply, elapsed: u64) -> u64 {
        let floor = supply.flowed(elapsed);
        let before = self.window.load(Ordering::Relaxed);
        if before != NEVER {
            // The exchange fails if leases were created in the meantime.
            let _ = self.window.compare_exchange(before, floor / supply.each(), Ordering::Relaxed, Ordering::Relaxed);
        }
        floor
    }

    /// Replaces the level by the result of `charge` for level, floor and cost.
    #[inline(always)]
    fn level_at_once(
        &self,
        supply: &Supply,
        floor: u64,
        now: Time,
        cost: u64,
        charge: impl Fn(&Supply, u64, u64, u64) -> Option<u64>,
    ) -> Option<Result<Admitted, Refused>> {
        let word = self.words.line();
        let mut level = word.load(Ordering::SeqCst);
        let standing = |level| Standing::of_level(supply, level, floor, now);
        while let Some(after) = charge(supply, level, floor, cost) {
            match word.compare_exchange_weak(level, after, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(Ok(self.admitted(standing(after), Receipt { at: now, cost, mark: after }))),
                Err(moved_on) => {
                    self.count_lost_race(supply);
                    level = moved_on;
                }
            }
        }
        let is_refused = supply.refuses_at_once(level, floor, cost);
        is_refused.then(|| Err(Refused { standing: standing(level), cost }))
    }

    /// The fast path with leases.
    #[inline(always)]
    fn lease_at_once(
        &self,
        supply: &Supply,
        leases: &Leases,
        elapsed: u64,
        now: Time,
        cost: u64,
    ) -> Option<Result<Admitted, Refused>> {
        if elapsed >= supply.direct() {
            return None;
        }
        let floor = supply.flowed(elapsed);
        let mark = leases.take_at_once(supply, floor, cost)?;
        let level = self.words.line().load(Ordering::Relaxed) & !SEALED;
        Some(Ok(self.admitted(Standing::of_level(supply, level, floor, now), Receipt { at: now, cost, mark })))
    }

    #[inline(always)]
    fn count_at_once(&self, counter: &WindowCounter, now: Time, cost: u64) -> Option<Result<Admitted, Refused>> {
        if self.has_journal() {
            return None;
        }
        let decided = counter.charge_at_once(&self.words.few.0, now, cost)?;
        let standing = |windows| Standing::of_counter(counter.quota(), windows);
        Some(match decided {
            Ok((windows, mark)) => Ok(self.admitted(standing(windows), Receipt { at: now, cost, mark })),
            Err(windows) => Err(Refused { standing: standing(windows), cost }),
        })
    }

    #[inline(always)]
    fn log_at_once(&self, log: &Log, now: Time, cost: u64) -> Option<Result<Admitted, Refused>> {
        let decided = if cost == 1 { log.charge_at_once(&self.words.many, now)? } else { return None };
        let standing = |logged| Standing::of_log(log.quota(), logged);
        Some(match decided {
            Ok((logged, mark)) => Ok(self.admitted(standing(logged), Receipt { at: now, cost, mark })),
            Err(logged) => Err(Refused { standing: standing(logged), cost }),
        })
    }

    #[inline(always)]
    fn admitted(&self, standing: Standing, receipt: Receipt) -> Admitted {
        Admitted { standing, charge: Charge { receipt, retunes: self.retunes } }
    }

    pub(super) fn charge(&self, now: Time, cost: u64) -> Result<Taken, Stop> {
        self.recording(now, (now, cost), || self.take(now, cost))
    }

    fn take(&self, now: Time, cost: u64) -> Result<Taken, Stop> {
        if let Kind::Level(supply) = &self.meter.kind {
            let word = self.words.line();
            match self.leases.get() {
                None => level::charge_contended(supply, word, now, cost, || self.count_lost_race(supply)),
                Some(leases) => leases.charge(supply, word, now, cost),
            }
        } else {
            self.meter.charge(self.words.all(), now, cost)
        }
    }

    /// Counts a race that this thread lost.
    #[cold]
    fn count_lost_race(&self, supply: &Supply) {
        if self.has_journal() {
            return; // a limit with a journal has no leases
        }
        if self.lost_races.fetch_add(1, Ordering::Relaxed) == RACES_BEFORE_LEASES {
            self.create_leases(supply);
        }
    }

    /// Creates the leases, if this limit can have leases.
    fn create_leases(&self, supply: &Supply) -> Option<&Leases> {
        if self.leases.get().is_none() {
            if self.has_journal() {
                return None;
            }
            self.leases.fill(Leases::of(supply)?);
            self.direct.store(0, Ordering::Relaxed);
            self.window.store(NEVER, Ordering::Relaxed);
        }
        self.leases.get()
    }

    /// Charges a request that does not need its units now.
    pub(super) fn take_at(&self, now: Time, cost: u64, when: When) -> Result<Taken, Stop> {
        if self.leases.get().is_some() {
            match self.charge(now, cost) {
                Err(Stop::Refused(_)) => {}
                decided => return decided,
            }
        }
        self.recording(now, (when.latest(now), cost), || self.meter.take(self.words.all(), now, cost, when))
    }

    pub(super) fn peek(&self, now: Time, cost: u64) -> Result<Standing, Stop> {
        match self.meter.peek(self.words.all(), now, cost) {
            // The leases can have room for this cost.
            Err(Stop::Refused(refused)) if self.leases.get().is_some() => {
                let standing = self.standing(now)?;
                if standing.remaining() >= cost { Ok(standing) } else { Err(Stop::Refused(refused)) }
            }
            decided => decided,
        }
    }

    /// Returns the standing. Leased admissions that no request used count as free.
    pub(super) fn standing(&self, now: Time) -> Result<Standing, Sealed> {
        let (Kind::Level(supply), Some(leases)) = (&self.meter.kind, self.leases.get()) else {
            return self.meter.standing(self.words.all(), now);
        };
        let (floor, level) = (supply.floor(now), load(self.first())?);
        let level = level.max(floor).saturating_sub(leases.left(supply, floor));
        Ok(Standing::of_level(supply, level, floor, now))
    }

    /// Gives a charge back. If the limit can have leases, the last charge returns to the word, and other charges return
    /// to a slot.
    pub(super) fn refund(&self, receipt: &Receipt, clock: &impl Fn() -> Time) -> Result<(), Sealed> {
        let Kind::Level(supply) = &self.meter.kind else {
            return self.meter.refund(self.words.all(), receipt, clock);
        };
        let word = self.words.line();
        loop {
            let level = load(word)?;
            if receipt.mark > supply.ceiling(clock()) {
                // The charge is a reservation, which is beyond all leases.
                return level::refund(supply, word, receipt, clock);
            }
            if self.is_credited.load(Ordering::SeqCst) {
                let refilled = supply.floor(clock()).saturating_sub(supply.floor(receipt.at)).div_ceil(supply.unit());
                return self.credit(receipt.cost.saturating_sub(refilled), clock);
            }
            if level == receipt.mark {
                let before = level.saturating_sub(receipt.cost * supply.unit());
                if swap(word, level, before).is_ok() {
                    return Ok(());
                }
            } else if let Some(leases) = self.create_leases(supply) {
                leases.refund(supply, receipt);
                // A credit that began in the meantime can have missed this lease: it must not stay above the word.
                return if self.is_credited.load(Ordering::SeqCst) { self.credit(0, clock) } else { Ok(()) };
            } else {
                return level::refund(supply, word, receipt, clock);
            }
        }
    }

    /// Takes back units of any earlier charges.
    pub(super) fn credit(&self, cost: u64, clock: &impl Fn() -> Time) -> Result<(), Sealed> {
        let Kind::Level(supply) = &self.meter.kind else {
            return self.meter.credit(self.words.all(), cost, clock);
        };
        self.is_credited.store(true, Ordering::SeqCst);
        let word = self.words.line();
        let mut level = load(word)?;
        loop {
            // The leases are read after the level: if there are none, the level contains no leased units.
            if let Some(leases) = self.leases.get() {
                return leases.credit(supply, word, cost, clock);
            }
            match swap(word, level, supply.credit(level, clock(), cost)) {
                Ok(()) => return Ok(()),
                Err(moved_on) => level = moved_on?,
            }
        }
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.first().load(Ordering::SeqCst) & SEALED != 0
    }
}

impl JournalState {
    fn new(journal: SharedJournal) -> Self {
        Self { journal, is_over: AtomicBool::new(false), is_ending: AtomicBool::new(false) }
    }
}

impl Words {
    fn new(count: usize, first: u64) -> Self {
        let word = |place| AtomicU64::new(if place == 0 { first } else { 0 });
        let many = if count > 2 { (0..count).map(word).collect() } else { Box::default() };
        Self { few: OwnCacheLine([word(0), word(1)]), many }
    }

    /// The first word, which is the only word of a level.
    #[inline]
    fn line(&self) -> &AtomicU64 {
        &self.few.0[0]
    }

    /// All words. A limit with one word gets a second, unused word.
    #[inline]
    fn all(&self) -> &[AtomicU64] {
        if self.many.is_empty() { &self.few.0 } else { &self.many }
    }
}
