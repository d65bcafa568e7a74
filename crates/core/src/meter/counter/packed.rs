//! A counter in one word that is guarded by a lock: the window's index, the count of the previous window, and the count
//! of this window. Each step unpacks the counter into two words and uses the code for shared words, so the decisions
//! are the same.

use super::{FROZEN, WindowCounter};
use crate::{
    Quota, Time,
    sync::{AtomicU64, Ordering},
    word::SEALED,
};

impl WindowCounter {
    /// Returns a counter whose counts and index fit into one word without its top bit. None if they do not fit. The
    /// counts get as many bits as possible, more than the limit needs, so that they survive a lowered limit.
    pub(crate) fn to_pack(quota: Quota, base: Time) -> Option<Self> {
        let counter = Self::new(quota, base);
        let needed = u64::BITS - quota.requests().leading_zeros();
        (needed..=counter.bits).rev().map(|bits| Self { bits, ..counter.clone() }).find(Self::packs)
    }

    fn packs(&self) -> bool {
        let windows = 1_u128 << (u64::BITS - 1).saturating_sub(2 * self.bits);
        windows * u128::from(self.period()) > u128::from(u64::MAX) + 4 * u128::from(self.period())
    }

    /// Runs a step on a packed word.
    pub(crate) fn packed<T>(&self, word: &AtomicU64, step: impl FnOnce(&[AtomicU64; 2]) -> T) -> T {
        let words = self.unpack(word);
        let result = step(&words);
        word.store(self.pack(&words), Ordering::Relaxed);
        result
    }

    pub(crate) fn unpack(&self, word: &AtomicU64) -> [AtomicU64; 2] {
        let word = word.load(Ordering::Relaxed);
        let (index, previous) = (word >> (2 * self.bits), self.count_of(word >> self.bits));
        self.spread(index, previous, self.count_of(word))
    }

    pub(crate) fn pack(&self, words: &[AtomicU64]) -> u64 {
        let (index, previous, current) = self.gather(words);
        index << (2 * self.bits) | previous << self.bits | current
    }

    /// Raises both counts to the counts of other words, window by window.
    pub(crate) fn join(&self, words: &[AtomicU64], others: &[AtomicU64]) {
        let (own, other) = (self.gather(words), self.gather(others));
        let index = own.0.max(other.0);
        let at_index = |(window, previous, current): (u64, u64, u64)| match index - window {
            0 => (previous, current),
            1 => (current, 0),
            _ => (0, 0),
        };
        let (own, other) = (at_index(own), at_index(other));
        let joined = self.spread(index, own.0.max(other.0), own.1.max(other.1));
        for (word, joined) in words.iter().zip(&joined) {
            word.store(joined.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns the index of the latest window, the count of the previous window, and the count of the latest window.
    fn gather(&self, words: &[AtomicU64]) -> (u64, u64, u64) {
        let [even, odd] = [&words[0], &words[1]].map(|word| word.load(Ordering::Relaxed) & !SEALED);
        // A frozen word shows that the next window has started.
        let begun = |word| self.index_of(word) + u64::from(word & FROZEN != 0);
        let index = begun(even).max(begun(odd));
        let (current, previous) = if index.is_multiple_of(2) { (even, odd) } else { (odd, even) };
        let count_in = |word, window| if self.index_of(word) == window { self.count_of(word) } else { 0 };
        (index, if index == 0 { 0 } else { count_in(previous, index - 1) }, count_in(current, index))
    }

    fn spread(&self, index: u64, previous: u64, current: u64) -> [AtomicU64; 2] {
        if index == 0 {
            return [0, 0].map(AtomicU64::new);
        }
        let (current, previous) = (self.word(index, current), FROZEN | self.word(index - 1, previous));
        if index.is_multiple_of(2) { [current, previous] } else { [previous, current] }.map(AtomicU64::new)
    }
}
