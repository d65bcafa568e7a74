//! A sliding window log in three words: it stores the times of a few *groups* of requests instead of each request. A
//! group counts until its latest request is one period old, so the count is an upper bound of the count of a log.
//!
//! If the limit is at most the number of groups, the count is exact, except for the resolution of times. Groups suit
//! clients that send in bursts. If the limit is larger, a client that sends evenly can use about five sixths of it. If
//! there are too many groups, two neighbours are merged: those for which the merge delays the fewest requests for the
//! shortest time.

use std::time::Duration;

use super::super::{
    epoch::Epoch,
    history::History,
    outcome::{Receipt, Stop, Taken},
};
use crate::{
    Quota, Standing, Time,
    standing::Logged,
    sync::{AtomicU64, Ordering},
    time::SET_BACK,
};

/// The largest number of groups.
const GROUPS: usize = 6;

/// The number of bits in the second and third word together, without their top bits.
const BITS: u32 = 126;

/// The least number of bits for the age of a group, relative to the latest one: the resolution is an 8,192th of the
/// period or finer.
const LEAST: u32 = 13;

/// The latest time, so that no time has the value of an unset word.
const LAST: u64 = u64::MAX - 1;

/// The layout of the words: the time and count of the latest group, then the count and age of each other group.
#[derive(Clone, Debug)]
pub(crate) struct Moments {
    quota: Quota,
    groups: usize,
    /// The number of bits of a count.
    count: u32,
    /// The number of bits of an age, and the nanoseconds of its unit.
    age: u32,
    unit: u64,
}

/// Requests that count as if all had arrived with the latest of them.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    moment: u64,
    count: u64,
}

/// The groups that count at one time, oldest first, with room for one more group.
#[derive(Clone, Copy, Debug, Default)]
struct Groups {
    all: [Group; GROUPS + 1],
    number: usize,
}

impl Groups {
    fn as_slice(&self) -> &[Group] {
        &self.all[..self.number]
    }

    fn total(&self) -> u64 {
        self.as_slice().iter().map(|group| group.count).sum()
    }

    fn latest(&self) -> u64 {
        self.as_slice().last().map_or(0, |group| group.moment)
    }

    /// Adds requests at the time of the last group or later, and merges groups until there are at most `most`.
    fn add(&mut self, moment: u64, count: u64, most: usize) {
        if count == 0 {
            return;
        }
        self.all[self.number] = Group { moment: moment.max(self.latest()), count };
        self.number += 1;
        if self.number > most {
            let delay = |first: &usize| {
                let [early, late] = [self.all[*first], self.all[*first + 1]];
                u128::from(late.moment - early.moment) * u128::from(early.count)
            };
            let first = (0..self.number - 1).min_by_key(delay).unwrap_or(0);
            self.all[first + 1].count += self.all[first].count;
            self.all.copy_within(first + 1..self.number, first);
            self.number -= 1;
        }
    }
}

impl Moments {
    pub(super) fn new(quota: Quota) -> Self {
        let count = u64::BITS - quota.requests().leading_zeros();
        let age = |others: u32| ((BITS - count) / others).saturating_sub(count);
        let most = quota.requests().min(GROUPS as u64) - 1;
        let most = u32::try_from(most).unwrap_or(0);
        let others = (1..=most).rev().find(|&others| age(others) >= LEAST).unwrap_or(0);
        let age = if others == 0 { 0 } else { age(others).min(u64::BITS - 1) };
        let unit = quota.period_nanos().div_ceil(1 << age);
        Self { quota, groups: others as usize + 1, count, age, unit }
    }

    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    pub(super) const fn words(&self) -> usize {
        3
    }

    fn opens(&self, moment: u64) -> u64 {
        moment.saturating_add(self.quota.period_nanos())
    }

    fn stored(&self, words: &[AtomicU64]) -> Groups {
        let [latest, low, high] = [0, 1, 2].map(|place: usize| words[place].load(Ordering::Relaxed));
        let mut rest = u128::from(low) | u128::from(high) << (BITS / 2);
        let mut next = |bits: u32| {
            let field = rest & ((1 << bits) - 1);
            rest >>= bits;
            u64::try_from(field).unwrap_or(u64::MAX)
        };
        let mut newest_first = [Group::default(); GROUPS];
        newest_first[0] = Group { moment: latest, count: next(self.count) };
        for group in &mut newest_first[1..self.groups] {
            let (count, age) = (next(self.count), next(self.age));
            *group = Group { moment: latest.saturating_sub(age * self.unit), count };
        }
        let mut groups = Groups::default();
        newest_first.iter().rev().for_each(|group| groups.add(group.moment, group.count, self.groups));
        groups
    }

    /// Returns the groups that count at `now`. A time that is too far ahead, because the clock was set back, counts as
    /// `now`.
    fn read(&self, words: &[AtomicU64], now: Time) -> Groups {
        let mut groups = Groups::default();
        let last = now.saturating_add(SET_BACK).as_nanos();
        for group in self.stored(words).as_slice() {
            let moment = if group.moment > last { now.as_nanos() } else { group.moment };
            if self.opens(moment) > now.as_nanos() {
                groups.add(moment, group.count, self.groups);
            }
        }
        groups
    }

    /// Writes the groups. Ages are rounded down, so that no group counts for a shorter time than it should.
    fn write(&self, words: &[AtomicU64], groups: &Groups) {
        let latest = groups.latest();
        let (mut rest, mut shift) = (0_u128, 0);
        for (place, group) in groups.as_slice().iter().rev().enumerate() {
            rest |= u128::from(group.count) << shift;
            shift += self.count;
            if place > 0 {
                rest |= u128::from(((latest - group.moment) / self.unit).min((1 << self.age) - 1)) << shift;
                shift += self.age;
            }
        }
        let half = (1_u128 << (BITS / 2)) - 1;
        let [low, high] = [rest & half, rest >> (BITS / 2)].map(|half| u64::try_from(half).unwrap_or(u64::MAX));
        for (word, value) in words.iter().zip([latest.min(LAST), low, high]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the time from which this cost is admitted. The cost must be within the limit.
    fn opens_for(&self, groups: &Groups, cost: u64) -> u64 {
        let mut total = groups.total();
        let mut at = 0;
        for group in groups.as_slice() {
            if total + cost <= self.quota.requests() {
                break;
            }
            total -= group.count;
            at = self.opens(group.moment);
        }
        at
    }

    pub(super) fn reserve(&self, words: &[AtomicU64], now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
        let latest = latest.max(now).min(now.saturating_add(SET_BACK / 2));
        let mut groups = self.read(words, now);
        let at = Time::from_nanos(self.opens_for(&groups, cost.min(self.quota.requests()))).max(now);
        if cost > self.quota.requests() || at > latest {
            return Err(Stop::Refused(self.standing_of(&groups, now, cost)));
        }
        groups.add(at.as_nanos(), cost, self.groups);
        self.write(words, &groups);
        let receipt = Receipt { at: Time::from_nanos(groups.latest()), cost, mark: 0 };
        Ok(Taken { at, standing: self.standing_of(&groups, now, 1), receipt })
    }

    pub(super) fn peek(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Stop> {
        let standing = self.standing(words, now, cost);
        if standing.retry_after(cost) == Some(Duration::ZERO) { Ok(standing) } else { Err(Stop::Refused(standing)) }
    }

    pub(super) fn standing(&self, words: &[AtomicU64], now: Time, cost: u64) -> Standing {
        self.standing_of(&self.read(words, now), now, cost)
    }

    fn standing_of(&self, groups: &Groups, now: Time, cost: u64) -> Standing {
        let wait = |at: u64| at.saturating_sub(now.as_nanos());
        let remaining = self.quota.requests().saturating_sub(groups.total());
        let opens = if cost <= remaining { 0 } else { wait(self.opens_for(groups, cost.min(self.quota.requests()))) };
        let reset = if groups.number == 0 { 0 } else { wait(self.opens(groups.latest())) };
        Standing::of_log(self.quota, Logged { remaining, cost, opens, reset })
    }

    /// Gives back the latest requests. Earlier requests count until they are one period old.
    pub(super) fn refund(&self, words: &[AtomicU64], receipt: &Receipt) {
        let mut groups = self.read(words, receipt.at);
        let Some(last) = groups.number.checked_sub(1) else { return };
        let group = &mut groups.all[last];
        if group.moment == receipt.at.as_nanos() && group.count >= receipt.cost {
            group.count -= receipt.cost;
            groups.number -= usize::from(group.count == 0);
            self.write(words, &groups);
        }
    }

    /// Takes back the newest requests, but no reservations.
    pub(super) fn credit(&self, words: &[AtomicU64], mut cost: u64, now: Time) {
        let mut groups = self.read(words, now);
        while cost > 0
            && let Some(last) = groups.number.checked_sub(1)
            && groups.all[last].moment <= now.as_nanos()
        {
            let count = &mut groups.all[last].count;
            let units = cost.min(*count);
            (*count, cost) = (*count - units, cost - units);
            groups.number -= usize::from(*count == 0);
        }
        self.write(words, &groups);
    }

    pub(super) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        self.read(words, now).number == 0
    }

    /// Returns an upper bound of the admissions since the meter came into force, and the remaining requests.
    pub(super) fn epoch(&self, words: &[AtomicU64], history: &History, since: Time) -> (Epoch<'static>, u64) {
        let (limit, period) = (self.quota.requests(), self.quota.period_nanos());
        let total = self.read(words, since).total();
        // The words do not contain requests that are older than a period: each earlier period may have been full.
        let start = self.oldest(since);
        let periods = start.saturating_sub(history.began).div_ceil(period);
        let counts = (start, total, if periods > 0 { limit } else { 0 });
        let epoch = Epoch::of_counter(counts, (limit, period), (periods, 0), history, since.as_nanos());
        (epoch, limit.saturating_sub(total))
    }

    /// Returns the first time that counts at `since`.
    pub(super) fn oldest(&self, since: Time) -> u64 {
        (since.as_nanos() + 1).saturating_sub(self.quota.period_nanos())
    }

    /// Starts with the requests of old words. The newest requests keep their times. The old words lack requests that
    /// count if the new period is longer, or if the words were cut to a limit that was used up. Then the missing
    /// requests count as admitted at `since`.
    pub(super) fn take_over(&self, words: &[AtomicU64], old: &Self, old_words: &[AtomicU64], since: Time) {
        let limit = self.quota.requests();
        let before = old.read(old_words, since);
        let is_known = self.quota.period_nanos() <= old.quota.period_nanos()
            && (before.total() < old.quota.requests() || limit <= old.quota.requests());
        let used = if is_known { before.total().min(limit) } else { limit };
        let (mut dropped, mut groups) = (before.total().saturating_sub(used), Groups::default());
        for group in before.as_slice() {
            let count = group.count.saturating_sub(dropped);
            dropped -= group.count - count;
            groups.add(group.moment, count, self.groups);
        }
        groups.add(since.as_nanos(), used.saturating_sub(before.total()), self.groups);
        self.write(words, &groups);
    }

    /// Starts with this many requests, which count as admitted at `since`.
    pub(super) fn begin(&self, words: &[AtomicU64], used: u64, since: Time) {
        let mut groups = Groups::default();
        groups.add(since.as_nanos(), used.min(self.quota.requests()), self.groups);
        self.write(words, &groups);
    }

    /// Returns the time for which the latest request still counts, for comparison with other keys: less than 2^16.
    pub(super) fn freshness(&self, words: &[AtomicU64], now: Time) -> u64 {
        let left = self.opens(self.stored(words).latest()).saturating_sub(now.as_nanos());
        left.min(self.quota.period_nanos()) / (self.quota.period_nanos() / 65_535 + 1)
    }

    /// Joins two states: the larger number of requests, at the later of both times.
    pub(super) fn join(&self, words: &[AtomicU64], others: &[AtomicU64]) {
        let [own, other] = [words, others].map(|words| self.stored(words));
        let mut groups = Groups::default();
        groups.add(own.latest().max(other.latest()), own.total().max(other.total()), self.groups);
        self.write(words, &groups);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Strategy;

    const PERIOD: u64 = 1_000_000_007;
    const START: u64 = 1_700_000_000_000_000_000;

    /// Sends many requests, `step` apart. Returns the times and costs of the admitted requests.
    fn offer(requests: u64, turns: u64, step: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
        let quota = Quota::new(Strategy::SlidingWindowLog, requests, Duration::from_nanos(PERIOD), None);
        let moments = Moments::new(quota.expect("valid"));
        let words = [0; 3].map(AtomicU64::new);
        let (mut now, mut admitted) = (START, Vec::new());
        for turn in 0..turns {
            now += step(turn);
            let time = Time::from_nanos(now);
            let cost = 1 + turn * turn % 7 % requests;
            let asked = moments.peek(&words, time, cost).is_ok();
            let taken = moments.reserve(&words, time, cost, time);
            assert_eq!(asked, taken.is_ok(), "{requests}");
            match taken {
                Ok(taken) if turn % 11 == 0 => moments.refund(&words, &taken.receipt),
                Ok(_) => admitted.push((now, cost)),
                Err(_) => {}
            }
        }
        admitted
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn no_period_has_more_than_the_limit() {
        for requests in [1, 2, 3, 4, 5, 6, 7, 12, 100, 1_000, 70_000, 1 << 20] {
            for step in [PERIOD / 40_000, PERIOD / 3_000 + 1, PERIOD / 50 + 3] {
                let admitted = offer(requests, 60_000, |turn| turn * 7 % 5 * step / 2);
                let mut first = 0;
                for (last, &(now, _)) in admitted.iter().enumerate() {
                    while admitted[first].0 + PERIOD <= now {
                        first += 1;
                    }
                    let sum: u64 = admitted[first..=last].iter().map(|&(_, cost)| cost).sum();
                    assert!(sum <= requests, "{requests}, {step}: {sum} within a period");
                }
                assert!(!admitted.is_empty(), "{requests}, {step}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn a_client_that_sends_evenly_can_use_five_sixths_of_the_limit() {
        for requests in [12, 100, 1_000] {
            let turns = 50 * requests;
            let admitted: u64 = offer(requests, turns, |_| PERIOD / requests / 3).iter().map(|&(_, cost)| cost).sum();
            let periods = turns / requests / 3;
            assert!(admitted >= periods * requests * 8 / 10, "{requests}: {admitted} in {periods} periods");
        }
    }

    #[test]
    fn few_requests_keep_their_moments() {
        for requests in 1..=3 {
            let admitted = offer(requests, 1_000, |_| PERIOD / requests);
            assert!(admitted.windows(2).all(|pair| pair[1].0 - pair[0].0 <= 3 * PERIOD), "{requests}");
        }
    }
}
