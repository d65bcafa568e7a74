//! The sliding window counter: one word for even windows and one word for odd windows. Each word contains the index of
//! its window and the count in it.
//!
//! A decision in window *w* changes the word of *w* and needs the final count of *w - 1*: the word of *w - 1* is
//! *frozen* before its count is used. A thread with a slow clock would still count in *w - 1*. This thread finds the
//! frozen word and decides at the start of *w* instead. So only one word changes at any time, and an admission is one
//! compare-and-swap, although the state has two words.
//!
//! ```text
//! admitted when      previous * (period - elapsed) + (current + cost) * period  <=  requests * period
//! ```

mod packed;

use std::time::Duration;

use super::{
    epoch::Epoch,
    history::History,
    outcome::{Receipt, Stop, Taken},
};
use crate::{
    Quota, Standing, Time,
    divisor::Divisor,
    quota::EVERYTHING,
    supply::BEHIND,
    sync::{AtomicU64, Ordering},
    time::SET_BACK,
    windows::Windows,
    word::{SEALED, Sealed, load},
};

/// The bit that marks the final count of a window.
const FROZEN: u64 = 1 << 62;

/// The index of the window at the base. The index is not zero, so that a word that is zero belongs to no window.
const FIRST: u64 = 2;

/// The bits of the count, unless the quota needs more bits: enough for 2^31 requests.
const MOST_BITS: u32 = 31;

#[derive(Clone, Debug)]
pub(crate) struct WindowCounter {
    quota: Quota,
    period: Divisor,
    /// The base time, which is the start of a window.
    base: Time,
    /// The time at which the window of index zero would start, modulo 2^64.
    origin: u64,
    /// The bits of the count, at the low end of a word. The index uses the other bits.
    bits: u32,
}

struct Seen {
    windows: Windows,
    index: u64,
    /// The words as they were read.
    current: u64,
    previous: u64,
}

impl WindowCounter {
    pub(super) fn new(quota: Quota, now: Time) -> Self {
        // All times before the base count as the base. So the base is long before `now`, and a clock that is set back
        // stays after the base.
        let base = now.as_nanos().saturating_sub(BEHIND);
        let base = Time::from_nanos(base - base % quota.period_nanos());
        let period = Divisor::new(quota.period_nanos());
        let origin = base.as_nanos().wrapping_sub(FIRST.wrapping_mul(quota.period_nanos()));
        Self { quota, period, base, origin, bits: bits_of_count(quota) }
    }

    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }

    fn period(&self) -> u64 {
        self.quota.period_nanos()
    }

    fn index_at(&self, now: Time) -> u64 {
        self.window_at(now).0
    }

    /// Returns the index of the window, and its elapsed time.
    #[inline]
    fn window_at(&self, now: Time) -> (u64, u64) {
        let (windows, elapsed) = self.period.divide(now.as_nanos().saturating_sub(self.base.as_nanos()));
        // The last index is not used, so that no word has the value of an unset word. The window before it never ends.
        let last = (FROZEN >> self.bits) - 2;
        if windows + FIRST <= last { (windows + FIRST, elapsed) } else { (last, self.period()) }
    }

    fn start_of(&self, index: u64) -> u64 {
        self.base.as_nanos().saturating_add(index.saturating_sub(FIRST).saturating_mul(self.period()))
    }

    fn word(&self, index: u64, count: u64) -> u64 {
        index << self.bits | count
    }

    fn index_of(&self, word: u64) -> u64 {
        (word & !(SEALED | FROZEN)) >> self.bits
    }

    fn count_of(&self, word: u64) -> u64 {
        word & ((1 << self.bits) - 1)
    }

    /// Reads both words for a decision at `now`. Corrects the words if the clock was set back.
    fn see(&self, words: &[AtomicU64], now: Time) -> Result<Seen, Sealed> {
        loop {
            let at_now = self.index_at(now);
            let (even, odd) = (load(&words[0])?, load(&words[1])?);
            // A frozen word shows that the next window has started.
            let begun = |word| self.index_of(word) + u64::from(word & FROZEN != 0);
            let index = at_now.max(begun(even)).max(begun(odd));
            if index > at_now && self.start_of(index) > now.saturating_add(SET_BACK).as_nanos() {
                self.set_back(words, [even, odd], at_now);
                continue;
            }
            let (current, previous) = if index.is_multiple_of(2) { (even, odd) } else { (odd, even) };
            let count_in = |word, window| if self.index_of(word) == window { self.count_of(word) } else { 0 };
            let start = self.start_of(index);
            let windows = Windows {
                previous: count_in(previous, index - 1),
                current: count_in(current, index),
                elapsed: now.as_nanos().saturating_sub(start).min(self.period()),
                lag: start.saturating_sub(now.as_nanos()),
            };
            return Ok(Seen { windows, index, current, previous });
        }
    }

    /// Makes the current window full, and the previous window empty.
    #[cold]
    fn set_back(&self, words: &[AtomicU64], seen: [u64; 2], index: u64) {
        for (parity, seen) in (0..).zip(seen) {
            let restart = if index % 2 == parity {
                self.word(index, self.quota.requests())
            } else {
                FROZEN | self.word(index - 1, 0)
            };
            let place = usize::from(parity == 1);
            let _ = words[place].compare_exchange(seen, restart, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Changes the count of the window that was read. Returns false if a word changed in the meantime.
    fn count(&self, words: &[AtomicU64], seen: &Seen, count: u64) -> bool {
        let frozen = if self.index_of(seen.previous) == seen.index - 1 {
            seen.previous | FROZEN
        } else {
            FROZEN | self.word(seen.index - 1, 0)
        };
        self.write(words, seen, frozen, count)
    }

    /// Writes the frozen word of the previous window, and the count of the window that was read. Returns false if a
    /// word changed in the meantime.
    fn write(&self, words: &[AtomicU64], seen: &Seen, frozen: u64, count: u64) -> bool {
        let [current, previous] = [seen.index % 2, (seen.index + 1) % 2].map(|parity| &words[usize::from(parity == 1)]);
        let swap = |word: &AtomicU64, from, to| {
            from == to || word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        swap(previous, seen.previous, frozen) && swap(current, seen.current, self.word(seen.index, count))
    }

    /// The fast path of a decision, if the current window has a count and the previous window is frozen. None if the
    /// decision needs the slow path. Returns the windows after a charge, with the index of the current window, or the
    /// unchanged windows after a refusal.
    ///
    /// The words determine the window, and the clock only confirms it. So the processor can compute the new words
    /// before the read of the clock is complete.
    #[inline(always)] // without inlining, the answer goes through memory
    pub(crate) fn charge_at_once(
        &self,
        words: &[AtomicU64; 2],
        now: Time,
        cost: u64,
    ) -> Option<Result<(Windows, u64), Windows>> {
        let [even, odd] = words.each_ref().map(|word| word.load(Ordering::SeqCst));
        // A frozen word is the larger of the two.
        let (word, mut current, last) = if even < odd { (&words[0], even, odd) } else { (&words[1], odd, even) };
        let index = current >> self.bits;
        let elapsed = now.as_nanos().wrapping_sub(self.origin.wrapping_add(index.wrapping_mul(self.period())));
        // The fast path continues only if no word is sealed and the time is in this window.
        if current >= FROZEN || (last >> self.bits) + 1 != (FROZEN >> self.bits) + index || elapsed >= self.period() {
            return None;
        }
        let previous = self.count_of(last);
        loop {
            let windows = Windows { previous, current: self.count_of(current), elapsed, lag: 0 };
            let after = windows.current.checked_add(cost)?;
            if !windows.have_room(&self.quota, after) {
                return if cost == 0 { None } else { Some(Err(windows)) };
            }
            match word.compare_exchange_weak(current, current + cost, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(Ok((Windows { current: after, ..windows }, index))),
                Err(moved_on) if moved_on >> self.bits == index => current = moved_on,
                Err(_) => return None,
            }
        }
    }

    pub(super) fn charge(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Taken, Stop> {
        self.reserve(words, now, cost, now)
    }

    /// Charges a cost now or at a later time in this window. The next window cannot be reserved, because it starts with
    /// the final count of this window.
    pub(super) fn reserve(&self, words: &[AtomicU64], now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
        loop {
            let mut seen = self.see(words, now)?;
            let wait = seen.windows.opens_in_this(&self.quota, cost);
            let at = match wait {
                // `now` is behind another thread's clock by `lag`: that thread has observed that this window has
                // started.
                Some(0) => now,
                Some(wait) => now.saturating_add(Duration::from_nanos(wait.saturating_add(seen.windows.lag))),
                None => Time::from_nanos(u64::MAX),
            };
            if wait.is_none() || at > latest.max(now) {
                return Err(Stop::Refused(Standing::of_counter(self.quota, seen.windows)));
            }
            if self.count(words, &seen, seen.windows.current + cost) {
                seen.windows.current += cost;
                let standing = Standing::of_counter(self.quota, seen.windows);
                return Ok(Taken { at, standing, receipt: Receipt { at: now, cost, mark: seen.index } });
            }
        }
    }

    pub(super) fn peek(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Stop> {
        let windows = self.see(words, now)?.windows;
        let standing = Standing::of_counter(self.quota, windows);
        if windows.opens_in_this(&self.quota, cost) == Some(0) { Ok(standing) } else { Err(Stop::Refused(standing)) }
    }

    pub(super) fn standing(&self, words: &[AtomicU64], now: Time) -> Result<Standing, Sealed> {
        Ok(Standing::of_counter(self.quota, self.see(words, now)?.windows))
    }

    /// Gives a charge back only within its window, because later windows have already used the window's count.
    pub(super) fn refund(&self, words: &[AtomicU64], receipt: &Receipt) -> Result<(), Sealed> {
        let word = &words[usize::from(receipt.mark % 2 == 1)];
        loop {
            let state = load(word)?;
            if state & FROZEN != 0 || self.index_of(state) != receipt.mark {
                return Ok(());
            }
            let without = self.word(receipt.mark, self.count_of(state).saturating_sub(receipt.cost));
            if word.compare_exchange(state, without, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Ok(());
            }
        }
    }

    /// Takes back units of the current window. Later windows have already used the counts of earlier ones. All units are
    /// those of both windows.
    pub(super) fn credit(&self, words: &[AtomicU64], cost: u64, now: Time) -> Result<(), Sealed> {
        if cost == EVERYTHING {
            return self.clear(words, now);
        }
        let mark = self.see(words, now)?.index;
        self.refund(words, &Receipt { at: now, cost, mark })
    }

    /// Makes both windows empty.
    fn clear(&self, words: &[AtomicU64], now: Time) -> Result<(), Sealed> {
        loop {
            let seen = self.see(words, now)?;
            if self.write(words, &seen, FROZEN | self.word(seen.index - 1, 0), 0) {
                return Ok(());
            }
        }
    }

    pub(super) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        self.see(words, now)
            .is_ok_and(|Seen { windows, .. }| windows.lag == 0 && windows.previous == 0 && windows.current == 0)
    }

    pub(super) fn same_windows(&self, other: &Self) -> bool {
        self.period() == other.period()
    }

    /// Reads sealed words for a decision at `since`.
    fn sealed(&self, words: &[AtomicU64], since: Time) -> Seen {
        let [even, odd] = [&words[0], &words[1]].map(|word| AtomicU64::new(word.load(Ordering::SeqCst) & !SEALED));
        match self.see(&[even, odd], since) {
            Ok(seen) => seen,
            Err(Sealed) => unreachable!("the copies are not sealed"),
        }
    }

    /// Returns the admissions since this meter came into force, and the remaining requests.
    pub(super) fn epoch(&self, words: &[AtomicU64], history: &History, since: Time) -> (Epoch<'static>, u64) {
        let Seen { windows, index, .. } = self.sealed(words, since);
        let (first, before) = match history.first {
            [0, 0] => (self.index_at(Time::from_nanos(history.began)), 0),
            // A frozen word is the larger of the two.
            [even, odd] => (self.index_of(even.min(odd)), self.count_of(even.min(odd))),
        };
        let epoch = Epoch::of_counter(
            (self.start_of(index), windows.current, windows.previous),
            (self.quota.requests(), self.period()),
            (index.saturating_sub(first), before),
            history,
            since.as_nanos(),
        );
        (epoch, windows.remaining(&self.quota))
    }

    /// Returns words with the counts of a counter that has the same period. Counts above a lowered limit stay.
    pub(super) fn with_counts_of(&self, old: &Self, old_words: &[AtomicU64], since: Time) -> [u64; 2] {
        let Windows { previous, current, lag, .. } = old.sealed(old_words, since).windows;
        self.with_counts(since.saturating_add(Duration::from_nanos(lag)), previous, current)
    }

    /// Returns words for `admitted_since`, which returns the number of requests admitted since a time.
    pub(super) fn with_admitted(&self, admitted_since: impl Fn(u64) -> u64, since: Time) -> [u64; 2] {
        let start = self.start_of(self.index_at(since));
        let current = admitted_since(start);
        let both = admitted_since(start.saturating_sub(self.period()));
        self.with_counts(since, both.saturating_sub(current), current)
    }

    fn with_counts(&self, since: Time, previous: u64, current: u64) -> [u64; 2] {
        let (index, most) = (self.index_at(since), (1 << self.bits) - 1);
        let previous = FROZEN | self.word(index - 1, previous.min(most));
        let current = self.word(index, current.min(most));
        if index.is_multiple_of(2) { [current, previous] } else { [previous, current] }
    }
}

/// Returns the number of bits of the count. If possible, the count has room for all requests that were admitted in a
/// window before the limit was lowered, at most one per nanosecond. But the index of the window needs enough bits for
/// 73 years.
fn bits_of_count(quota: Quota) -> u32 {
    let needed = u64::BITS - quota.requests().leading_zeros();
    needed.max((quota.period_nanos().ilog2() + 1).min(MOST_BITS))
}
