//! The sliding window log. Its state is a *head* in one word, which determines the next request's entry, and a ring
//! with the times of the last `requests` admissions.
//!
//! Request number *i* is admitted when request *i - requests* is one period old, and takes over its entry in the ring.
//! So a decision reads as many entries as its cost, for any length of the log. The search for the number of requests
//! that fit now starts at the result of the last search, which is usually one or two entries away. An admission is one
//! compare-and-swap of the head. Then the times are stored. In between, an entry still contains the time of the
//! previous lap. A bit that changes with each lap marks such an entry, and the entry counts as younger than a period.
//! So a thread that is paused at this point can cause refusals of other requests, but no admissions.
//!
//! Entries are stored, not swapped, because only the thread that moved the head writes them. The next writer has read
//! these entries before. A refund, too, moves the head first: back to its earlier position, but to a value that was
//! never used before. So a thread that read the head earlier cannot admit a request with the old value.

mod at_once;
mod ring;

use std::time::Duration;

use self::ring::{LAP, LAST, Opens, Ring, Spot};
use super::{
    epoch::Epoch,
    history::History,
    outcome::{Receipt, Stop, Taken},
};
use crate::{
    Quota, Standing, Time,
    standing::Logged,
    sync::{AtomicU64, Ordering, yield_now},
    time::SET_BACK,
    word::{SEALED, Sealed, UNSET, load, set},
};

/// The number of times that a decision yields to a thread whose time is missing, before it refuses the request.
const PATIENCE: usize = if cfg!(loom) { 1 } else { 100 };

/// The number of entries that a search examines one by one after the last result, before it takes larger steps.
const NEAR: u64 = 4;

/// The longest lag of threads that have not observed a change yet.
const LAG: Duration = Duration::from_secs(1);

/// A sliding window log. Its words are the head, one word for successors, the result of the last search, and then the
/// ring.
#[derive(Clone, Debug)]
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

    /// Returns the time at which the next `cost` requests are all admitted. Each entry is read, because entries can be
    /// out of time order: threads can read the clock in one order and be admitted in another order.
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

    /// Returns the wait from `now`.
    fn until_open(&self, opens: Opens, now: Time) -> u64 {
        match opens {
            Opens::At(at) => at.saturating_sub(now.as_nanos()),
            Opens::Pending => self.quota.period_nanos(),
        }
    }

    pub(super) fn charge(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Taken, Stop> {
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
            let spot = Spot::of(first);
            let opens = self.all_open(words, spot, cost, now);
            let at = match opens {
                Opens::At(at) if at <= latest.as_nanos() => Time::from_nanos(at).max(now),
                _ if words[0].load(Ordering::SeqCst) != first => continue,
                Opens::Pending if patience > 0 => {
                    patience -= 1;
                    yield_now();
                    continue;
                }
                // The refusal reports the state that caused it, not the times that another thread has written since.
                _ => {
                    let logged = self.logged(words, spot, now, cost).closed(cost, self.until_open(opens, now));
                    return Err(Stop::Refused(Standing::of_log(self.quota, logged)));
                }
            };
            let after = self.ring.moved(first, cost);
            if words[0].compare_exchange(first, after, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                for number in 0..cost {
                    let spot = self.ring.after(spot, number);
                    self.ring.write(words, spot, spot.written(at));
                }
                let logged = self.logged(words, Spot::of(after), now, 1);
                let standing = Standing::of_log(self.quota, logged);
                return Ok(Taken { at: at.max(asked), standing, receipt: Receipt { at, cost, mark: first } });
            }
        }
    }

    pub(super) fn peek(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Stop> {
        let standing = self.standing(words, now, cost)?;
        if standing.retry_after(cost) == Some(Duration::ZERO) { Ok(standing) } else { Err(Stop::Refused(standing)) }
    }

    pub(super) fn standing(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Sealed> {
        loop {
            let first = load(&words[0])?;
            let standing = Standing::of_log(self.quota, self.logged(words, Spot::of(first), now, cost));
            // If another thread admits a request at the same time, it writes the next entries. The log then looks full.
            let is_closed = standing.retry_after(cost) != Some(Duration::ZERO);
            if !(is_closed && words[0].load(Ordering::SeqCst) != first) {
                return Ok(standing);
            }
        }
    }

    /// Returns the log's standing if `next` is the next request's entry, with the wait for a request of this cost.
    fn logged(&self, words: &[AtomicU64], next: Spot, now: Time, cost: u64) -> Logged {
        let now = now.min(LAST);
        let end = end(&words[2]);
        let remaining = self.free(words, next, now, self.distance(next, end));
        remember(&words[2], self.ring.after(next, remaining).place);
        let opens = self.until_open(self.all_open(words, next, cost.min(self.length()), now), now);
        // The first request that does not fit can be later than the newest one: see `is_idle`.
        let reset = [(remaining + 1).min(self.length()), self.length()].map(|last| self.wait(words, next, last, now));
        let logged = Logged { remaining, cost, opens, reset: reset[0].max(reset[1]) };
        if opens > 0 { logged.closed(cost, opens) } else { logged }
    }

    /// Returns the number of requests, starting with `next`, that have entries before `place`.
    #[inline]
    fn distance(&self, next: Spot, place: u64) -> u64 {
        if place < next.place { place + self.length() - next.place } else { place - next.place }
    }

    /// Returns the time until the last of the next `requests` requests is admitted.
    fn wait(&self, words: &[AtomicU64], next: Spot, requests: u64, now: Time) -> u64 {
        self.until_open(self.ring.opens(words, self.ring.after(next, requests - 1), now), now)
    }

    /// Returns the number of requests that could be admitted now. Entries are in time order, except where threads
    /// overtook each other. So the entries that are old enough end at one point, which is usually the result of the
    /// last search or a few entries further.
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

    /// Returns true if this many requests could be admitted now.
    fn is_open(&self, words: &[AtomicU64], next: Spot, requests: u64, now: Time) -> bool {
        requests == 0 || self.ring.is_open(words, self.ring.after(next, requests - 1), self.ring.aged(now))
    }

    /// Searches from any start, first in steps that double, and then by bisection.
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

    /// Gives back the latest requests. An earlier request keeps its entry until it is one period old.
    pub(super) fn refund(&self, words: &[AtomicU64], receipt: &Receipt) -> Result<(), Sealed> {
        let (head, first) = (load(&words[0])?, Spot::of(receipt.mark));
        let spots = (0..receipt.cost).map(|number| self.ring.after(first, number));
        let are_latest = Spot::is_same(head, self.ring.moved(receipt.mark, receipt.cost))
            && spots
                .clone()
                .all(|spot| self.ring.entry(words, spot).load(Ordering::SeqCst) == spot.written(receipt.at));
        if !are_latest {
            return Ok(());
        }
        let back = self.ring.moved_back(head, receipt.mark);
        match words[0].compare_exchange(head, back, Ordering::SeqCst, Ordering::SeqCst) {
            // Until an entry is restored, it has the wrong lap and admits nothing. The first entry is restored last.
            Ok(_) => spots.rev().for_each(|spot| {
                self.ring.write(words, spot, spot.given_back(receipt.at, self.quota.period_nanos()));
            }),
            Err(state) if state & SEALED != 0 => return Err(Sealed),
            Err(_) => {}
        }
        Ok(())
    }

    /// Takes back the newest requests, one after the other. Stops at a request that is a period old, or whose time is
    /// being written. Also stops at a reservation: until its time, the entry that it gives back would refuse all requests.
    pub(super) fn credit(&self, words: &[AtomicU64], cost: u64, clock: &impl Fn() -> Time) -> Result<(), Sealed> {
        for _ in 0..cost.min(self.length()) {
            let spot = self.ring.before(Spot::of(load(&words[0])?), 1);
            let Some(at) = spot.moment_of(self.ring.entry(words, spot).load(Ordering::SeqCst)) else { break };
            let now = clock();
            if at > now || at.saturating_add(Duration::from_nanos(self.quota.period_nanos())) <= now {
                break;
            }
            self.refund(words, &Receipt { at, cost: 1, mark: spot.head() })?;
        }
        Ok(())
    }

    pub(super) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        let now = now.min(LAST);
        let Ok(head) = load(&words[0]) else { return false };
        // After a change of the quota, a request can pass reservations that were made before the change. Then the newest
        // entry is not the latest one. The second word is not zero in a log that replaced another one.
        let is_replaced = words[1].load(Ordering::SeqCst) != 0;
        self.is_open(words, Spot::of(head), self.length(), now)
            && (!is_replaced || (1..self.length()).all(|requests| self.is_open(words, Spot::of(head), requests, now)))
    }

    /// Returns the next request's entry according to sealed words.
    fn sealed(&self, words: &[AtomicU64]) -> Spot {
        Spot::of(words[0].load(Ordering::SeqCst) & !SEALED)
    }

    /// Returns the times of all requests in sealed words, newest first. An entry that is being written or given back
    /// counts as admitted at `since`.
    fn moments(&self, words: &[AtomicU64], since: u64) -> Vec<u64> {
        let next = self.sealed(words);
        let spots = (1..=self.length()).map(|number| self.ring.before(next, number));
        let mut moments: Vec<_> = spots
            .map_while(|spot| {
                let entry = self.ring.entry(words, spot).load(Ordering::SeqCst);
                if entry == spot.before ^ LAP {
                    return None;
                }
                Some(spot.moment_of(entry).map_or(since, Time::as_nanos))
            })
            .collect();
        for newer in (1..moments.len()).rev() {
            moments[newer - 1] = moments[newer - 1].max(moments[newer]);
        }
        moments
    }

    /// Returns the admissions since this meter came into force, and the remaining requests.
    pub(super) fn epoch(&self, words: &[AtomicU64], history: &History, since: Time) -> (Epoch<'static>, u64) {
        let mut moments = self.moments(words, since.as_nanos());
        let left = self.free(words, self.sealed(words), since.min(LAST), 0);
        // The log starts with older requests, which the history already contains.
        let began = Time::from_nanos(history.began).saturating_sub(LAG).as_nanos();
        let since_began = moments.iter().take_while(|&&at| at >= began).count() as u64;
        let moved = self.ring.distance(self.ring.head(history.first[0]), words[0].load(Ordering::SeqCst) & !SEALED);
        let own = since_began.min(moved);
        moments.truncate(usize::try_from(own).unwrap_or(usize::MAX));
        let epoch =
            Epoch::of_log(moments, (self.length(), self.quota.period_nanos()), moved, history, since.as_nanos());
        (epoch, left)
    }

    /// Stores the number of requests with which the log starts. The history contains all of them.
    pub(super) fn prepare(&self, next: &mut History, since: Time) {
        let oldest = self.oldest(since);
        next.first[0] = next.moments(0).take(self.most()).take_while(|&at| at >= oldest).count() as u64;
    }

    /// Stores the number of requests with which the log starts after another log. The newest requests keep their times,
    /// and the history contains the older requests.
    pub(super) fn prepare_from_log(&self, next: &mut History, old: &Self, old_words: &[AtomicU64], since: Time) {
        let oldest = self.oldest(since);
        let moments = old.moments(old_words, since.as_nanos());
        let kept = moments.iter().take(self.most()).take_while(|&&at| at >= oldest).count();
        let older = next.moments(moments.len() as u64).take(self.most() - kept).take_while(|&at| at >= oldest).count();
        next.first = [(kept + older) as u64, kept as u64];
    }

    /// Returns the largest number of requests that count.
    fn most(&self) -> usize {
        usize::try_from(self.length()).expect("at most 2^20")
    }

    /// Returns the first time that counts at `since`.
    fn oldest(&self, since: Time) -> u64 {
        (since.min(LAST).as_nanos() + 1).saturating_sub(self.quota.period_nanos())
    }

    /// Starts the log with these requests, newest first, and with older requests of the history.
    pub(super) fn begin(&self, words: &[AtomicU64], history: &History, mut moments: Vec<u64>) {
        let known = moments.len();
        let (used, kept) = self.agree(words, history.first);
        moments.truncate(kept);
        let older = history.moments(if kept > 0 { known as u64 } else { 0 }).take(used - kept);
        moments.extend(older);
        moments.resize(used, history.began);
        for (index, &at) in (0..).zip(moments.iter().rev()) {
            self.put(words, index, Time::from_nanos(at));
        }
        set(&words[0], self.ring.head(used as u64));
    }

    pub(super) fn begin_from_log(&self, words: &[AtomicU64], history: &History, old: &Self, old_words: &[AtomicU64]) {
        self.begin(words, history, old.moments(old_words, history.began));
    }

    /// Returns the numbers of the first thread, so that all threads compute the same successor.
    fn agree(&self, words: &[AtomicU64], [used, kept]: [u64; 2]) -> (usize, usize) {
        let mine = (kept << 32) | (used + 1);
        let agreed = match words[1].compare_exchange(0, mine, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => mine,
            Err(first) => first,
        };
        let narrow = |number: u64| usize::try_from(number).expect("at most 2^20");
        (narrow((agreed & 0xffff_ffff) - 1), narrow(agreed >> 32))
    }

    /// Writes an entry unless another thread has written it. At this time, no request can be admitted.
    fn put(&self, words: &[AtomicU64], index: u64, at: Time) {
        if words[0].load(Ordering::SeqCst) == UNSET {
            let (spot, order) = (Spot::of(self.ring.head(index)), Ordering::SeqCst);
            let _ = self.ring.entry(words, spot).compare_exchange(0, spot.written(at), order, order);
        }
    }
}

/// Returns the entry of the first request that did not fit in the last search, as a hint.
#[inline]
fn end(hint: &AtomicU64) -> u64 {
    // Under loom, the hint is not used, to limit the number of interleavings. A search returns the same result from any
    // start.
    if cfg!(loom) { 0 } else { hint.load(Ordering::Relaxed) }
}

#[inline]
fn remember(hint: &AtomicU64, found: u64) {
    if !cfg!(loom) {
        hint.store(found, Ordering::Relaxed);
    }
}
