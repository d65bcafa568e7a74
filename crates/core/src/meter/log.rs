//! The sliding window log: how many requests were admitted, in one word, and a ring with the moment of each of the last
//! `requests` of them.
//!
//! Request number *i* may go once request *i - requests* is one period old, and takes its place in the ring. So a decision
//! looks at as many entries as it costs, however long the log is; how many could go at once is searched from where it was
//! found last, which is a step or two away unless nobody asked for a while. The word is moved by one compare-and-swap, which admits;
//! then the moments are written. In between, an entry still holds the one before it, told apart by a bit that changes with
//! each lap; it counts as not old enough, so a thread that is stopped at that point can make others be refused, and never
//! be admitted.

mod ring;

use std::time::Duration;

use self::ring::{GONE, LAST, Opens, Ring, Spot};
use super::{Left, Place, SEALED, Sealed, Stop, Taken, UNSET, load, set};
use crate::standing::Logged;
use crate::supply::SET_BACK;
use crate::sync::{AtomicU64, Ordering, yield_now};
use crate::{Quota, Standing, Time};

/// How often the system gets a turn to let the thread go on whose moment is missing, before others are refused for it.
const PATIENCE: usize = if cfg!(loom) { 1 } else { 100 };

/// How far from where the last search ended the next one looks, one by one, before it strides.
const NEAR: u64 = 4;

/// Its words: the number of requests; one that successors use; where the last search ended; then the ring.
#[derive(Debug)]
pub(crate) struct Log {
    quota: Quota,
    ring: Ring,
}

impl Log {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, ring: Ring::new(quota) }
    }

    pub(crate) fn quota(&self) -> Quota {
        self.quota
    }

    pub(super) fn words(&self) -> usize {
        self.ring.words()
    }

    fn length(&self) -> u64 {
        self.quota.requests()
    }

    /// When all of `cost` requests from this place on may go.
    fn all_open(&self, words: &[AtomicU64], first: Spot, cost: u64, now: Time) -> Opens {
        let mut at = 0;
        for number in 0..cost {
            match self.ring.opens(words, self.ring.after(first, number), now) {
                Opens::At(opens) => at = at.max(opens),
                Opens::Pending => return Opens::Pending,
            }
        }
        Opens::At(at)
    }

    /// A decision on one request that nobody is in the way of; none if it is not that simple. Where the log stands after a
    /// charge, with the number of requests before it, or as it is if it was refused.
    #[inline(always)] // as in the cell: an answer that is passed on in memory costs more than the decision
    pub(crate) fn check_at_once(&self, words: &[AtomicU64], now: Time) -> Option<Result<(Logged, u64), Logged>> {
        let count = load(&words[0]).ok().filter(|_| now <= LAST)?;
        let (spot, aged) = (self.ring.spot(count), self.ring.aged(now));
        if self.ring.is_open(words, spot, aged) {
            let (next, after) = (self.ring.after(spot, 1), count + 1);
            let hint = hint(words);
            let remaining = self.free(words, next, now, hint.saturating_sub(after));
            let opens = if remaining > 0 { 0 } else { self.wait(words, next, 1, now) };
            words[0].compare_exchange(count, after, Ordering::SeqCst, Ordering::SeqCst).ok()?;
            self.ring.write(words, spot, now);
            remember(words, hint, after + remaining);
            // The last of all is this one.
            return Some(Ok((Logged { remaining, cost: 1, opens, reset: self.quota.period_nanos() }, count)));
        }
        let opens = match self.ring.opens(words, spot, now) {
            Opens::At(at) => at.checked_sub(now.as_nanos()).filter(|&wait| wait > 0)?,
            Opens::Pending => return None,
        };
        let logged = Logged { remaining: 0, cost: 1, opens, reset: self.wait(words, spot, self.length(), now) };
        // Only then was what was read the entry of the lap before.
        (words[0].load(Ordering::SeqCst) == count).then_some(Err(logged))
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
            let spot = self.ring.spot(first);
            let at = match self.all_open(words, spot, cost, now) {
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
                for number in 0..cost {
                    let spot = self.ring.after(spot, number);
                    self.ring.write(words, spot, at);
                }
                let logged = self.logged(words, first + cost, self.ring.after(spot, cost), now, 1);
                let standing = Standing::of_log(self.quota, logged);
                return Ok(Taken { at: at.max(asked), standing, place: Place { at, cost, mark: first } });
            }
        }
    }

    pub(super) fn ask(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Stop> {
        let standing = self.standing(words, now, cost)?;
        if standing.retry_after(cost) == Some(Duration::ZERO) { Ok(standing) } else { Err(Stop::Refused(standing)) }
    }

    pub(super) fn standing(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Sealed> {
        let count = load(&words[0])?;
        Ok(Standing::of_log(self.quota, self.logged(words, count, self.ring.spot(count), now, cost)))
    }

    /// Where the log stands after `count` requests, the next of which has the place `next`, with the wait for one of this
    /// cost.
    #[inline(never)] // a refusal needs none of it, and is faster without
    fn logged(&self, words: &[AtomicU64], count: u64, next: Spot, now: Time, cost: u64) -> Logged {
        let now = now.min(LAST);
        let hint = hint(words);
        let remaining = self.free(words, next, now, hint.saturating_sub(count));
        remember(words, hint, count + remaining);
        let opens = if cost <= remaining { 0 } else { self.wait(words, next, cost.min(self.length()), now) };
        Logged { remaining, cost, opens, reset: self.wait(words, next, self.length(), now) }
    }

    /// How long until the last of so many requests from this place on may go.
    #[inline]
    fn wait(&self, words: &[AtomicU64], next: Spot, requests: u64, now: Time) -> u64 {
        match self.ring.opens(words, self.ring.after(next, requests - 1), now) {
            Opens::At(at) => at.saturating_sub(now.as_nanos()),
            Opens::Pending => self.quota.period_nanos(),
        }
    }

    /// How many requests from this place on could go at once. Entries lie in the order of their moments, so it is the number
    /// from which on none is open: as a rule it is where it was found last, or a few further.
    #[inline(always)]
    fn free(&self, words: &[AtomicU64], next: Spot, now: Time, guess: u64) -> u64 {
        let (start, aged) = (guess.min(self.length()), self.ring.aged(now));
        if start == 0 || self.ring.is_open(words, self.ring.after(next, start - 1), aged) {
            let mut spot = self.ring.after(next, start);
            for free in start..(start + NEAR).min(self.length()) {
                if !self.ring.is_open(words, spot, aged) {
                    return free;
                }
                spot = self.ring.after(spot, 1);
            }
        }
        self.search(words, next, now, start)
    }

    /// Whether so many requests could go at once.
    #[inline]
    fn is_open(&self, words: &[AtomicU64], next: Spot, requests: u64, now: Time) -> bool {
        requests == 0 || self.ring.is_open(words, self.ring.after(next, requests - 1), self.ring.aged(now))
    }

    /// The same from anywhere: in strides that double, and then by halving.
    #[cold]
    fn search(&self, words: &[AtomicU64], next: Spot, now: Time, start: u64) -> u64 {
        let is_open = |free| self.is_open(words, next, free, now);
        let end = self.length() + 1;
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
        // once the word is moved back, this one. In the first lap it is as if nobody ever had the place.
        let none = |index| if index < self.length() { 0 } else { GONE };
        let entry = |index, at| self.ring.spot(index).written(at);
        let swap = |index, from, to| {
            let word = self.ring.entry(words, self.ring.spot(index));
            word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        let gone = (first..after).take_while(|&index| swap(index, entry(index, place.at), none(index))).count() as u64;
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
            swap(index, none(index), back);
        }
        match moved {
            Err(state) if state & SEALED != 0 => Err(Sealed),
            _ => Ok(()),
        }
    }

    pub(super) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        load(&words[0]).is_ok_and(|count| self.is_open(words, self.ring.spot(count), self.length(), now.min(LAST)))
    }

    pub(super) fn left(&self, words: &[AtomicU64], since: Time) -> Left {
        let count = words[0].load(Ordering::SeqCst) & !SEALED;
        Left { left: self.free(words, self.ring.spot(count), since.min(LAST), 0), unit: 1, burst: self.length() }
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
            let moment = if index < kept { old.moment_of(old_words, count - kept + index) } else { None };
            self.put(words, index, moment.map_or(since, |moment| self.aged(old, moment, since)));
        }
        set(&words[0], used);
    }

    /// When request number `index` was admitted; none if that is just being written, or given back.
    fn moment_of(&self, words: &[AtomicU64], index: u64) -> Option<Time> {
        let spot = self.ring.spot(index);
        spot.moment_of(self.ring.entry(words, spot).load(Ordering::SeqCst))
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
            let (spot, order) = (self.ring.spot(index), Ordering::SeqCst);
            let _ = self.ring.entry(words, spot).compare_exchange(0, spot.written(at), order, order);
        }
    }
}

/// The number of the first request that found no room when the log was searched last.
#[inline]
fn hint(words: &[AtomicU64]) -> u64 {
    // Loom has enough to do with what matters: wherever a search begins, it ends at the same place.
    if cfg!(loom) { 0 } else { words[2].load(Ordering::Relaxed) }
}

#[inline]
fn remember(words: &[AtomicU64], hint: u64, found: u64) {
    if !cfg!(loom) && found != hint {
        words[2].store(found, Ordering::Relaxed);
    }
}
