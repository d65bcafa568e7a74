//! The transition from a state to its successor under the next quota.
//!
//! A retune must not lose usage while other threads decide. So it links a successor to the state in force and then
//! seals the state's words: no charge can change a sealed word. A thread that finds a sealed word computes the
//! successor's first words from the sealed ones. All threads compute the same words, and the first of them stores
//! these. Then each thread decides in the successor. So deciding threads complete the change instead of waiting for it,
//! and no charge is lost. Only retunes wait for each other.

use std::sync::Arc;

use super::State;
use crate::{
    Quota, Time,
    chain::{Chain, Replaced},
    meter::{History, Kind, Memory, Meter, SharedJournal},
    sync::{AtomicU64, Ordering},
    word::{SEALED, UNSET},
};

impl State {
    /// Seals the words and returns the successor. The caller must hold `retuning`.
    pub(in crate::limiter) fn succeed(self: &Arc<Self>, quota: Quota, clock: impl Fn() -> Time) -> Arc<Self> {
        let base = clock();
        let journal = SharedJournal::new(self.meter.quota(), quota, base);
        let meter = Meter::new(quota, base);
        let successor = Arc::new(Self::with(meter, self.retunes + 1, UNSET, base, journal, Chain::after(self)));
        successor.queue.fill(Arc::clone(self.queue()));
        self.chain.set(&successor);
        let mut word = self.first().load(Ordering::SeqCst);
        loop {
            // This time must not be earlier than any charge in the sealed word.
            successor.since.store(clock().as_nanos(), Ordering::Relaxed);
            match self.first().compare_exchange_weak(word, word | SEALED, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(moved_on) => word = moved_on,
            }
        }
        self.begin(&successor);
        self.chain.shorten(&successor);
        successor
    }

    /// Returns the sealed word without the unused leased admissions. None without leases.
    fn take_back(&self, since: Time) -> Option<AtomicU64> {
        let (Kind::Level(supply), Some(leases)) = (&self.meter.kind, self.leases.get()) else {
            return None;
        };
        leases.seal();
        let (floor, level) = (supply.floor(since), self.first().load(Ordering::SeqCst) & !SEALED);
        Some(AtomicU64::new(level.max(floor).saturating_sub(leases.left(supply, floor)) | SEALED))
    }

    /// Returns the successor, or a later state, after setting its words. A word of this state must be sealed.
    pub(in crate::limiter) fn follow(&self) -> Arc<Self> {
        let successor = self.chain.successor().expect("the successor is linked before a word is sealed");
        self.begin(&successor);
        successor
    }

    /// Sets the successor's words, unless they are set. The words of a later state are set.
    fn begin(&self, successor: &Self) {
        if successor.first().load(Ordering::SeqCst) == UNSET {
            self.meter.seal(self.words.all());
            let since = Time::from_nanos(successor.since.load(Ordering::Relaxed));
            let returned = self.take_back(since);
            let words = returned.as_ref().map_or(self.words.all(), std::slice::from_ref);
            if successor.history.get().is_none() {
                let state = self.journal.as_ref().filter(|_| self.has_journal());
                let journal = state.map(|state| &state.journal).filter(|journal| journal.is_on(since));
                let journal = journal.map(|journal| journal.with(|journal| journal.clone()));
                let words = (words, journal.as_ref());
                let history = match self.history.get() {
                    Some(history) => successor.meter.history_after(&self.meter, words, history, since, Memory::Many),
                    None => {
                        let made = Time::from_nanos(self.since.load(Ordering::Relaxed));
                        let none = History::none(self.meter.quota(), made);
                        successor.meter.history_after(&self.meter, words, &none, since, Memory::Many)
                    }
                };
                // If another thread was faster, its history is equal, except for times that a thread was writing at
                // that moment.
                let _ = successor.history.set(Box::new(history));
            }
            let history = successor.history.get().expect("filled above");
            successor.meter.begin(successor.words.all(), history, &self.meter, words);
        }
    }
}

impl Replaced for State {
    fn retunes(&self) -> u64 {
        self.retunes
    }

    fn chain(&self) -> &Chain<Self> {
        &self.chain
    }

    fn chain_mut(&mut self) -> &mut Chain<Self> {
        &mut self.chain
    }
}
