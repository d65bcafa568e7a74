//! The sliding window log: how many requests were admitted, in one word, and a ring with the moment of each of the last
//! `requests` of them.
//!
//! Request number *i* may go once request *i - requests* is one period old, and takes its place in the ring. So a decision
//! looks at as many entries as it costs, however long the log is; how many could go at once is searched from where it was
//! found last, which is a step or two away unless nobody asked for a while. The word is moved by one compare-and-swap, which admits;
//! then the moments are written. In between, an entry still holds the one before it, told apart by a bit that changes with
//! each lap; it counts as not old enough, so a thread that is stopped at that point can make others be refused, and never
//! be admitted.

use std::time::Duration;

use super::{Left, Place, SEALED, Sealed, Stop, Taken, UNSET, load, set};
use crate::divisor::Divisor;
use crate::standing::Logged;
use crate::supply::SET_BACK;
use crate::sync::{AtomicU64, Ordering, yield_now};
use crate::{Quota, Standing, Time};

/// The bit that tells laps apart.
const LAP: u64 = 1 << 63;

/// The last moment that an entry can hold, in the year 2262. There time stands still.
const LAST: Time = Time::from_nanos(LAP - 2);

/// How often the system gets a turn to let the thread go on whose moment is missing, before others are refused for it.
const PATIENCE: usize = if cfg!(loom) { 1 } else { 100 };

/// The word with the number of requests; one that successors use; where the last search ended; then the ring.
const HEAD: usize = 3;

#[derive(Debug)]
pub(crate) struct Log {
    quota: Quota,
    length: Divisor,
}

/// When a request may go that needs an entry's place.
#[derive(Clone, Copy, Debug)]
enum Opens {
    At(u64),
    /// Its moment is just being written.
    Pending,
}

impl Log {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, length: Divisor::new(quota.requests()) }
    }

    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    pub(super) fn words(&self) -> usize {
        HEAD + usize::try_from(self.length()).expect("at most 2^20")
    }

    fn length(&self) -> u64 {
        self.quota.requests()
    }

    /// Which word is its entry, and the bit of its lap.
    #[inline]
    fn place(&self, index: u64) -> (usize, u64) {
        let (lap, place) = self.length.divide(index);
        (HEAD + usize::try_from(place).expect("at most 2^20"), lap % 2 * LAP)
    }

    /// When request number `index` may go.
    fn opens(&self, words: &[AtomicU64], index: u64, now: Time) -> Opens {
        let Some(before) = index.checked_sub(self.length()) else {
            return Opens::At(0);
        };
        let (place, lap) = self.place(before);
        let word = &words[place];
        let entry = word.load(Ordering::SeqCst);
        if entry == 0 || entry & LAP != lap {
            return Opens::Pending;
        }
        if moment_of(entry) > now.saturating_add(SET_BACK).as_nanos() {
            // The clock was set back: as if it had been admitted now.
            let now = entry_of(lap, now);
            let _ = word.compare_exchange(entry, now, Ordering::SeqCst, Ordering::SeqCst);
            return self.opens_of(now);
        }
        self.opens_of(entry)
    }

    fn opens_of(&self, entry: u64) -> Opens {
        Opens::At(moment_of(entry).saturating_add(self.quota.period_nanos()))
    }

    /// When all of `cost` requests from number `first` on may go.
    fn all_open(&self, words: &[AtomicU64], first: u64, cost: u64, now: Time) -> Opens {
        let mut at = 0;
        for index in first..first + cost {
            match self.opens(words, index, now) {
                Opens::At(opens) => at = at.max(opens),
                Opens::Pending => return Opens::Pending,
            }
        }
        Opens::At(at)
    }

    pub(super) fn check(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Taken, Stop> {
        self.reserve(words, now, cost, now)
    }

    pub(super) fn reserve(&self, words: &[AtomicU64], now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
        let asked = now;
        let now = now.min(LAST);
        let latest = latest.min(LAST).max(now).min(now.saturating_add(SET_BACK / 2));
        let mut patience = PATIENCE;
        loop {
            let first = load(&words[0])?;
            if cost > self.length() {
                return Err(Stop::Refused(self.standing(words, now, cost)?));
            }
            let at = match self.all_open(words, first, cost, now) {
                Opens::At(at) if at <= latest.as_nanos() => Time::from_nanos(at).max(now),
                _ if words[0].load(Ordering::SeqCst) != first => continue,
                Opens::Pending if patience > 0 => {
                    patience -= 1;
                    yield_now();
                    continue;
                }
                _ => return Err(Stop::Refused(self.standing(words, now, cost)?)),
            };
            if words[0].compare_exchange(first, first + cost, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                self.write(words, first, cost, at);
                let standing = self.standing_from(words, first + cost, now, 1);
                return Ok(Taken { at: at.max(asked), standing, place: Place { at, cost, mark: first } });
            }
        }
    }

    fn write(&self, words: &[AtomicU64], first: u64, cost: u64, at: Time) {
        for index in first..first + cost {
            let (place, lap) = self.place(index);
            // A swap, because those have one order that all threads agree on.
            words[place].swap(entry_of(lap, at), Ordering::SeqCst);
        }
    }

    pub(super) fn ask(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Stop> {
        let standing = self.standing(words, now, cost)?;
        if standing.retry_after(cost) == Some(Duration::ZERO) { Ok(standing) } else { Err(Stop::Refused(standing)) }
    }

    pub(super) fn standing(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Sealed> {
        Ok(self.standing_from(words, load(&words[0])?, now, cost))
    }

    /// Where the log stands after `count` requests, with the wait for one of this cost.
    fn standing_from(&self, words: &[AtomicU64], count: u64, now: Time, cost: u64) -> Standing {
        let now = now.min(LAST);
        let wait = |index| match self.opens(words, index, now) {
            Opens::At(at) => at.saturating_sub(now.as_nanos()),
            Opens::Pending => self.quota.period_nanos(),
        };
        // Loom has enough to do with what matters: wherever the search begins, it ends at the same place.
        let hint = if cfg!(loom) { 0 } else { words[2].load(Ordering::Relaxed) };
        let remaining = self.free(words, count, now, hint.saturating_sub(count));
        if !cfg!(loom) && count + remaining != hint {
            words[2].store(count + remaining, Ordering::Relaxed);
        }
        let opens = if cost <= remaining { 0 } else { wait(count + cost.min(self.length()) - 1) };
        let reset = wait(count + self.length() - 1);
        let logged = Logged { remaining, cost, opens, reset };
        Standing::of_log(self.quota, logged)
    }

    /// How many requests could go at once. Entries lie in the order of their moments, so it is the number from which on none
    /// is open: searched in strides that double, from a guess on, and then by halving.
    fn free(&self, words: &[AtomicU64], count: u64, now: Time, guess: u64) -> u64 {
        let is_open = |free| {
            free == 0 || matches!(self.opens(words, count + free - 1, now), Opens::At(at) if at <= now.as_nanos())
        };
        let (start, end) = (guess.min(self.length()), self.length() + 1);
        let (mut free, mut not, mut stride) = (start, end, 1);
        if is_open(start) {
            while free + stride < end && is_open(free + stride) {
                (free, stride) = (free + stride, stride * 2);
            }
            not = not.min(free + stride);
        } else {
            not = start;
            while !is_open(not.saturating_sub(stride)) {
                (not, stride) = (not - stride, stride * 2);
            }
            free = not.saturating_sub(stride);
        }
        while not - free > 1 {
            let middle = free + (not - free) / 2;
            if is_open(middle) { free = middle } else { not = middle }
        }
        free
    }

    /// Gives back the latest requests. An earlier one keeps its place until it is a period old.
    pub(super) fn refund(&self, words: &[AtomicU64], place: &Place) -> Result<(), Sealed> {
        let (first, after) = (place.mark, place.mark + place.cost);
        if load(&words[0])? != after {
            return Ok(());
        }
        // As long as an entry is gone nobody is admitted by it: neither the next lap, if another thread is faster, nor,
        // once the word is moved back, this one.
        let entry = |index, at| entry_of(self.place(index).1, at);
        let swap = |index, from, to| {
            words[self.place(index).0].compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let gone = (first..after).take_while(|&index| swap(index, entry(index, place.at), 0)).count() as u64;
        let moved = if gone < place.cost {
            Err(words[0].load(Ordering::SeqCst))
        } else {
            words[0].compare_exchange(after, first, Ordering::SeqCst, Ordering::SeqCst).map(drop)
        };
        let expired = place.at.saturating_sub(self.quota.period());
        for index in first..first + gone {
            let back = match moved {
                Ok(()) => index.checked_sub(self.length()).map_or(0, |before| entry(before, expired)),
                Err(_) => entry(index, place.at),
            };
            if back != 0 {
                swap(index, 0, back);
            }
        }
        match moved {
            Err(state) if state & SEALED != 0 => Err(Sealed),
            _ => Ok(()),
        }
    }

    pub(super) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        let now = now.min(LAST);
        load(&words[0]).is_ok_and(
            |count| matches!(self.opens(words, count + self.length() - 1, now), Opens::At(at) if at <= now.as_nanos()),
        )
    }

    pub(super) fn left(&self, words: &[AtomicU64], since: Time) -> Left {
        let count = words[0].load(Ordering::SeqCst) & !SEALED;
        Left { left: self.free(words, count, since.min(LAST), 0), unit: 1, burst: self.length() }
    }

    /// The newest requests keep their moments (their ages in proportion, if the period is another). If more are allowed
    /// from now on, as many count as admitted at `since` as came on top; and so do those that are reserved ahead, because
    /// entries lie in the order of their moments.
    pub(super) fn take_over(&self, words: &[AtomicU64], old: &Self, old_words: &[AtomicU64], since: Time) {
        let left = old.left(old_words, since);
        let used = self.agree(words, self.length() - left.requests_of(self.length()));
        let count = old_words[0].load(Ordering::SeqCst) & !SEALED;
        let kept = used.min(old.length() - left.left.min(old.length())).min(count);
        for index in 0..used {
            let entry = match index {
                _ if index < kept => old_words[old.place(count - kept + index).0].load(Ordering::SeqCst),
                _ => 0,
            };
            let moment = if entry == 0 { since } else { self.aged(old, Time::from_nanos(moment_of(entry)), since) };
            self.put(words, index, moment);
        }
        set(&words[0], used);
    }

    fn aged(&self, old: &Self, moment: Time, since: Time) -> Time {
        let age = since.duration_since(moment).as_nanos() * u128::from(self.quota.period_nanos());
        let age = u64::try_from(age / u128::from(old.quota.period_nanos())).unwrap_or(u64::MAX);
        since.saturating_sub(Duration::from_nanos(age))
    }

    /// As if what is not left had been admitted at `since`.
    pub(super) fn begin(&self, words: &[AtomicU64], left: Left, since: Time) {
        let used = self.agree(words, self.length() - left.requests_of(self.length()));
        for index in 0..used {
            self.put(words, index, since);
        }
        set(&words[0], used);
    }

    /// The number that all go by who work out the same successor: the first one.
    fn agree(&self, words: &[AtomicU64], used: u64) -> u64 {
        match words[1].compare_exchange(0, used + 1, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => used,
            Err(first) => first - 1,
        }
    }

    /// Writes an entry unless it is there, while nobody can be admitted yet.
    fn put(&self, words: &[AtomicU64], index: u64, at: Time) {
        if words[0].load(Ordering::SeqCst) == UNSET {
            let (place, lap) = self.place(index);
            let _ = words[place].compare_exchange(0, entry_of(lap, at), Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// An entry: a moment, never zero.
fn entry_of(lap: u64, at: Time) -> u64 {
    lap | (at.min(LAST).as_nanos() + 1)
}

fn moment_of(entry: u64) -> u64 {
    (entry & !LAP) - 1
}
