//! The terms of a rule in the form that decisions need: one meter for each limit and each override.

use std::{iter, sync::Arc};

use super::{Clock, histories::Journals};
use crate::{
    Quota, Strategy, Terms, Time,
    answer::{Receipts, Tightening, Tightest},
    meter::{History, Kind, Memory, Meter, Receipt, Stop, Taken, When},
    refused::RuleRefused,
    supply::Supply,
    sync::{AtomicU64, Ordering},
    word::{Sealed, UNSET},
};

/// Terms and their meters, all with the same base time.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) terms: Terms,
    /// The limits of keys without an override.
    pub(super) plain: MeterSet,
    /// The same limits, for keys without a cell.
    pub(super) overflow: MeterSet,
    overrides: Vec<MeterSet>,
}

/// The meters of all limits for one key. The words of a key are the words of its first limit, then the words of its
/// second limit, and so on.
#[derive(Debug)]
pub(super) struct MeterSet {
    meters: Vec<Meter>,
    override_index: Option<usize>,
}

/// The words of a key under the old terms, and the time at which the new terms come into force.
pub(super) struct Old<'a> {
    pub(super) set: &'a MeterSet,
    pub(super) words: &'a [AtomicU64],
    pub(super) since: Time,
    /// The time at which the old terms came into force. If they were the first terms, nothing was counted before.
    pub(super) began: Time,
    pub(super) is_first: bool,
    /// For each limit, whether no bucket was in force before the old terms.
    pub(super) bucketless: &'a [bool],
    /// The admissions before the old terms came into force. `None` if the table kept no histories.
    pub(super) histories: Option<Arc<[History]>>,
    /// The journals that recorded charges under the old terms, and the key's fingerprint.
    pub(super) journals: Option<(&'a Journals, u64)>,
}

/// A function that stores the histories of a key. It takes the value of one thread, and returns the value of the first
/// thread.
pub(super) type Agree<'a> = &'a dyn Fn(Arc<[History]>) -> Arc<[History]>;

/// A request to the limits of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) now: Time,
    pub(crate) cost: u64,
    pub(crate) when: When,
}

/// The charges of all limits of a key.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) at: Time,
    pub(super) receipts: Receipts,
    pub(super) tightest: Tightest,
}

/// The reason why a request was not charged.
#[derive(Debug)]
pub(super) enum Halt {
    Refused(RuleRefused),
    /// The words are final, and the table has a successor.
    Sealed,
}

impl Book {
    pub(super) fn new(terms: Terms, base: Time) -> Self {
        let plain = MeterSet::new(terms.quotas(None), None, base);
        let overflow = MeterSet::overflow(terms.quotas(None), base);
        let overrides = (0..terms.overrides()).map(|index| MeterSet::new(terms.quotas(Some(index)), Some(index), base));
        Self { plain, overflow, overrides: overrides.collect(), terms }
    }

    /// Returns true if the words of a key contain less information than its words in the old book.
    pub(super) fn forgets(&self, old: &Self, kept: &[Option<usize>]) -> bool {
        // An override that is added or removed moves a key from one set to the other.
        let all = || iter::once(&self.plain).chain(&self.overrides);
        let olds = || iter::once(&old.plain).chain(&old.overrides);
        all().any(|set| olds().any(|old| set.forgets(old, kept)))
    }

    /// Returns the longest period.
    pub(super) fn longest(&self) -> u64 {
        iter::once(&self.plain).chain(&self.overrides).map(MeterSet::longest).max().unwrap_or(0)
    }

    /// Returns true if this limit is a bucket, for any key.
    pub(super) fn is_bucket(&self, place: usize) -> bool {
        let mut sets = iter::once(&self.plain).chain(&self.overrides);
        sets.any(|set| set.meters[place].quota().strategy().is_bucket())
    }

    pub(super) fn set(&self, override_index: Option<usize>) -> &MeterSet {
        override_index.map_or(&self.plain, |index| &self.overrides[index])
    }
}

impl Old<'_> {
    fn history(&self, place: usize) -> History {
        match &self.histories {
            Some(histories) => histories[place].clone(),
            None if self.is_first => History::none(self.set.meters[place].quota(), self.began),
            None => History::unknown(self.began, self.bucketless[place]),
        }
    }
}

impl Request {
    #[inline]
    fn take(&self, meter: &Meter, words: &[AtomicU64]) -> Result<Taken, Stop> {
        meter.take(words, self.now, self.cost, self.when)
    }
}

impl MeterSet {
    fn new(quotas: &[Quota], override_index: Option<usize>, base: Time) -> Self {
        Self { meters: quotas.iter().map(|&quota| Meter::new(quota, base)).collect(), override_index }
    }

    /// Returns meters for words that are guarded by a lock.
    fn overflow(quotas: &[Quota], base: Time) -> Self {
        Self { meters: quotas.iter().map(|&quota| Meter::guarded(quota, base)).collect(), override_index: None }
    }

    /// Returns the number of words of one key.
    pub(super) fn words(&self) -> usize {
        self.meters.iter().map(Meter::words).sum()
    }

    /// Returns the only limit, if its state is one level.
    #[inline(always)]
    pub(super) fn line(&self) -> Option<&Supply> {
        match self.meters.as_slice() {
            [Meter { kind: Kind::Level(supply) }] => Some(supply),
            _ => None,
        }
    }

    pub(super) fn limits<'a>(
        &'a self,
        mut words: &'a [AtomicU64],
    ) -> impl Iterator<Item = (&'a Meter, &'a [AtomicU64])> {
        self.meters.iter().map(move |meter| {
            let (own, others) = words.split_at(meter.words());
            words = others;
            (meter, own)
        })
    }

    /// Charges all limits, or none. Several limits are all checked first, so that a refusal charges nothing. Charges
    /// are given back only if another thread took the capacity between the check and the charge.
    #[inline(always)]
    pub(super) fn take(&self, words: &[AtomicU64], request: &Request, clock: Clock<'_>) -> Result<Granted, Halt> {
        if let [meter] = self.meters.as_slice() {
            let taken = request.take(meter, words).map_err(|stop| self.halt(0, &stop, request))?;
            let tightest = Tightest { limit: 0, standing: taken.standing, override_index: self.override_index };
            return Ok(Granted { at: taken.at, receipts: Receipts::One(taken.receipt), tightest });
        }
        self.take_all(words, request, clock)
    }

    #[inline(never)]
    fn take_all(&self, words: &[AtomicU64], request: &Request, clock: Clock<'_>) -> Result<Granted, Halt> {
        match request.when {
            When::Now => _ = self.peek(words, request)?,
            When::By(_) => self.refuse_impossible(words, request)?,
            When::Incurred => {}
        }
        let (mut at, mut receipts, mut tightening) = (request.now, Receipts::NONE, Tightest::none());
        for (limit, (meter, own)) in self.limits(words).enumerate() {
            match request.take(meter, own) {
                Ok(taken) => {
                    receipts.add(taken.receipt);
                    tightening.consider(taken.standing);
                    at = at.max(taken.at);
                }
                Err(stop) => {
                    self.refund(words, receipts.as_slice(), clock);
                    return Err(self.halt(limit, &stop, request));
                }
            }
        }
        Ok(Granted { at, receipts, tightest: tightening.with_override(self.override_index) })
    }

    /// Returns the result that a charge would have, and charges nothing.
    pub(super) fn peek(&self, words: &[AtomicU64], request: &Request) -> Result<Tightest, Halt> {
        let mut tightening: Tightening = Tightest::none();
        for (limit, (meter, own)) in self.limits(words).enumerate() {
            match meter.peek(own, request.now, request.cost) {
                Ok(standing) => tightening.consider(standing),
                Err(stop) => return Err(self.halt(limit, &stop, request)),
            }
        }
        Ok(tightening.with_override(self.override_index))
    }

    /// Refuses a cost that a limit can never admit. Such a cost must not be reserved first: a reservation that is given
    /// back can leave a trace.
    fn refuse_impossible(&self, words: &[AtomicU64], request: &Request) -> Result<(), Halt> {
        for (limit, (meter, own)) in self.limits(words).enumerate() {
            match meter.peek(own, request.now, request.cost) {
                Err(Stop::Refused(standing)) if standing.retry_after(request.cost).is_none() => {
                    return Err(self.halt(limit, &Stop::Refused(standing), request));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Gives charges back to the limits that were charged, which are the first ones in order. After a retune, the
    /// charges stay.
    pub(super) fn refund(&self, words: &[AtomicU64], receipts: &[Receipt], clock: Clock<'_>) {
        for ((meter, own), receipt) in self.limits(words).zip(receipts) {
            let _ = meter.refund(own, receipt, &clock);
        }
    }

    /// Gives units back to every limit. If the first limit is sealed, returns an error, and no limit got units. A later
    /// limit that is sealed in the meantime gets none.
    pub(super) fn credit(&self, words: &[AtomicU64], units: u64, clock: Clock<'_>) -> Result<(), Sealed> {
        let mut credited = self.limits(words).map(|(meter, own)| meter.credit(own, units, &clock));
        let first = credited.next().unwrap_or(Ok(()));
        if first.is_ok() {
            credited.for_each(drop);
        }
        first
    }

    pub(super) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        self.limits(words).all(|(meter, own)| meter.is_idle(own, now))
    }

    /// Returns the number of periods for which a request can count.
    pub(super) fn lives(&self) -> usize {
        if self.meters.iter().any(|meter| meter.quota().strategy() == Strategy::SlidingWindowCounter) { 2 } else { 1 }
    }

    /// Returns the usage of the most used limit, for comparison with other keys.
    pub(super) fn used(&self, words: &[AtomicU64], now: Time) -> u64 {
        self.limits(words).map(|(meter, own)| meter.used(own, now)).max().unwrap_or(0)
    }

    /// Raises `words` to an upper bound of `words` and `others`. The caller must hold a lock.
    pub(super) fn join(&self, words: &[AtomicU64], others: &[AtomicU64]) {
        for ((meter, own), (_, others)) in self.limits(words).zip(self.limits(others)) {
            meter.join(own, others);
        }
    }

    /// Joins the order of changes to the words, without changing them. Later charges observe the earlier writes of this
    /// thread, and this thread observes earlier charges. Every charge changes one of the first two words.
    ///
    /// `AcqRel` would be enough for the memory model. But on x86-64, LLVM removes a `fetch_or(0)` whose result is not
    /// used, unless its ordering is `SeqCst`. Without this instruction, an earlier store could become visible after
    /// later loads.
    pub(super) fn order_after_charges(&self, words: &[AtomicU64]) {
        for (_, own) in self.limits(words) {
            for word in own.iter().take(2) {
                word.fetch_or(0, Ordering::SeqCst);
            }
        }
    }

    /// Marks words that were never used, so that they are computed from the predecessor's words.
    pub(super) fn unset(&self, words: &[AtomicU64]) {
        for (_, own) in self.limits(words) {
            own[0].store(UNSET, Ordering::Relaxed);
        }
    }

    /// Unsets words that may have been used. The caller must hold a lock.
    pub(super) fn clear_unset(&self, words: &[AtomicU64]) {
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.unset(words);
    }

    pub(super) fn is_unset(&self, words: &[AtomicU64]) -> bool {
        self.limits(words).any(|(_, own)| own[0].load(Ordering::Acquire) == UNSET)
    }

    /// Computes unset words from the words under the old terms, or starts them if there are no such words. Threads that
    /// do so at the same time compute the same words. `kept` has the old index of each limit, and None for a new limit.
    /// Without `agree`, only the words keep information about earlier admissions.
    pub(super) fn succeed<'a>(
        &self,
        words: &[AtomicU64],
        old: impl FnOnce() -> Option<Old<'a>>,
        kept: &[Option<usize>],
        agree: Option<Agree<'_>>,
    ) {
        if !self.is_unset(words) {
            return;
        }
        let Some(old) = old() else {
            self.limits(words).for_each(|(meter, own)| meter.start(own));
            return;
        };
        old.set.seal(old.words);
        let before =
            |place: Option<usize>| Some(old.set.limits(old.words).nth(place?).expect("a place among the old limits"));
        let memory = if agree.is_some() { Memory::Few } else { Memory::None };
        // The journal is read after the words are sealed, so it includes all charges in the words. Threads can read
        // different values; `agree` selects one of them.
        let journal = agree.and(old.journals).and_then(|(journals, fingerprint)| journals.get(fingerprint));
        let histories = self.meters.iter().zip(kept).map(|(meter, &place)| match before(place) {
            Some((meter_before, old_words)) => {
                let history = old.history(place.expect("found above"));
                meter.history_after(meter_before, (old_words, journal.as_ref()), &history, old.since, memory)
            }
            None => History::none(meter.quota(), old.since),
        });
        let histories: Vec<_> = histories.collect();
        let agreed = agree.map(|agree| agree(Arc::from(histories.as_slice())));
        let histories = agreed.as_deref().unwrap_or(&histories);
        for (((meter, own), &place), history) in self.limits(words).zip(kept).zip(histories) {
            match before(place) {
                Some((meter_before, old_words)) => meter.begin(own, history, meter_before, old_words),
                None => meter.start(own),
            }
        }
    }

    /// Returns the words of an unknown key under these terms, after terms under which unknown keys have `old_words`.
    /// The key may have been forgotten when it was idle, so a bucket starts with at most the tokens that it had at that
    /// time.
    pub(super) fn start_after(
        &self,
        old: &Self,
        old_words: &[AtomicU64],
        kept: &[Option<usize>],
        now: Time,
    ) -> Vec<AtomicU64> {
        let words = super::zeros(self.words());
        for ((meter, own), &place) in self.limits(&words).zip(kept) {
            if let Some((before, old_words)) = place.and_then(|place| old.limits(old_words).nth(place)) {
                meter.start_with(own, before.tokens_at_start(old_words, now), now);
            }
        }
        words
    }

    /// Raises the words of a new key to the start words.
    pub(super) fn raise(&self, words: &[AtomicU64], start: &[AtomicU64], now: Time) {
        if !self.is_idle(start, now) {
            for ((meter, own), (_, start)) in self.limits(words).zip(self.limits(start)) {
                meter.raise(own, start);
            }
        }
    }

    /// Returns true if the new words cannot contain all information of the old words, because strategies or windows
    /// differ.
    pub(super) fn forgets(&self, old: &Self, kept: &[Option<usize>]) -> bool {
        self.meters.iter().zip(kept).any(|(meter, &place)| place.is_some_and(|place| meter.forgets(&old.meters[place])))
    }

    /// Returns the longest period.
    pub(super) fn longest(&self) -> u64 {
        self.meters.iter().map(|meter| meter.quota().period_nanos()).max().unwrap_or(0)
    }

    fn seal(&self, words: &[AtomicU64]) {
        for (meter, own) in self.limits(words) {
            meter.seal(own);
        }
    }

    #[cold]
    fn halt(&self, limit: usize, stop: &Stop, request: &Request) -> Halt {
        match *stop {
            Stop::Refused(standing) => {
                let override_index = self.override_index;
                Halt::Refused(RuleRefused { limit, standing, cost: request.cost, override_index })
            }
            Stop::Sealed => Halt::Sealed,
        }
    }
}
