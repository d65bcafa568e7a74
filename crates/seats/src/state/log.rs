//! The times of the last admissions of a sliding window log. Request number *i* can proceed when request number *i -
//! requests* is one period old.
//!
//! If the limit is lowered, the log keeps all times of the current period. So the limit can be raised again.

use std::collections::VecDeque;

use crate::terms::{DAY, StoreLimit};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The number of admissions so far, without those that were given back.
    head: u64,
    /// The maximum number of times in the log: `requests`, or more after the limit was lowered.
    slots: u64,
    /// The times of admissions, oldest first.
    times: VecDeque<u64>,
    /// The number of owed units for which the current period has no time, because they were more than the slots.
    beyond: u64,
}

impl Log {
    pub(super) fn new(limit: &StoreLimit) -> Self {
        Self { head: 0, slots: limit.requests, times: VecDeque::new(), beyond: 0 }
    }

    /// The numbers of a log in a store's value. They do not include the times.
    pub(super) fn numbers(&self) -> [u64; 3] {
        [self.head, self.slots, self.beyond]
    }

    /// Converts the admissions to another limit.
    pub(super) fn moved(&self, old: &StoreLimit, new: &StoreLimit, now: u64) -> Self {
        if old.requests == new.requests {
            return self.clone();
        }
        let times: VecDeque<u64> =
            self.times.iter().copied().filter(|time| time + old.period > self.time(now)).collect();
        let head = times.len() as u64;
        Self { head, slots: head.max(new.requests), times, beyond: 0 }
    }

    /// The time to record for an admission at `now`. Recorded times never decrease.
    pub(super) fn time(&self, now: u64) -> u64 {
        self.times.back().map_or(now, |&last| last.max(now))
    }

    pub(super) fn advance(&mut self, now: u64) {
        if self.time(now) > now + DAY {
            self.append(now, self.slots);
            self.beyond = 0;
        }
    }

    /// Charges units, even if they exceed the limit.
    pub(super) fn charge(&mut self, limit: &StoreLimit, now: u64, units: u64) {
        let at = self.time(now);
        let used = self.used_with_beyond(limit, at);
        self.beyond += (used + units).saturating_sub(self.slots);
        self.append(at, units);
    }

    /// As [`used`](Self::used). If the log has a free slot, all units without a time are older than a period.
    fn used_with_beyond(&mut self, limit: &StoreLimit, at: u64) -> u64 {
        let used = self.used(limit, at);
        if used < self.slots {
            self.beyond = 0;
        }
        used
    }

    pub(super) fn append(&mut self, at: u64, units: u64) {
        for _ in 0..units.min(self.slots) {
            // The oldest time goes first, so that a full log takes no more memory.
            while self.times.len() as u64 >= self.slots {
                self.times.pop_front();
            }
            self.times.push_back(at);
            self.head += 1;
        }
    }

    /// The number of times for which the log has memory.
    pub(super) fn memory(&self) -> usize {
        self.times.capacity()
    }

    /// Returns true if the log can need memory for more times.
    pub(super) fn can_grow(&self) -> bool {
        (self.memory() as u64) < self.slots
    }

    /// The number of admissions in the period that ends at `now`.
    pub(super) fn used(&self, limit: &StoreLimit, now: u64) -> u64 {
        let old = self.times.partition_point(|&time| time + limit.period <= now);
        (self.times.len() - old) as u64
    }

    /// Adds admissions until the period that ends at `at` has `used` of them. A log that has already dropped times of
    /// that period does not change: it has recorded enough later admissions.
    pub(super) fn raise(&mut self, limit: &StoreLimit, at: u64, used: u64) {
        let is_full = self.times.len() as u64 >= self.slots;
        if is_full && self.times.front().is_some_and(|first| first + limit.period > at) {
            return;
        }
        let known = self.times.iter().filter(|&&time| time + limit.period > at && time <= at).count() as u64;
        self.append(self.time(at), used.saturating_sub(known));
    }

    /// Makes the newest admissions not earlier than `at`, and adds admissions until there are `used` of them. Unlike
    /// [`raise`](Self::raise), this expects no exact times: they can come from levels of different times.
    pub(super) fn raise_latest(&mut self, at: u64, used: u64) {
        let used = used.min(self.slots);
        let newest = usize::try_from(used).unwrap_or(usize::MAX);
        self.times.iter_mut().rev().take(newest).for_each(|time| *time = (*time).max(at));
        self.append(self.time(at), used.saturating_sub(self.times.len() as u64));
    }

    pub(super) fn delay(&mut self, by: u64, now: u64) {
        self.times.iter_mut().for_each(|time| *time = (*time + by).min(now));
    }

    /// Removes the last admissions that have this time, at most `units`.
    pub(super) fn give_back(&mut self, at: u64, units: u64) {
        let latest = self.times.iter().rev().take_while(|&&time| time == at).count() as u64;
        self.drop_newest(units.min(latest));
    }

    /// Removes the last admissions of the current period, at most `units`. First it removes those without a time.
    pub(super) fn forget_newest(&mut self, limit: &StoreLimit, now: u64, units: u64) {
        let used = self.used_with_beyond(limit, self.time(now));
        let beyond = units.min(self.beyond);
        self.beyond -= beyond;
        self.drop_newest((units - beyond).min(used));
    }

    fn drop_newest(&mut self, units: u64) {
        self.times.truncate(self.times.len() - usize::try_from(units).unwrap_or(0));
        self.head -= units;
        // The times that these admissions replaced were older than a period, so zero is good enough.
        while (self.times.len() as u64) < self.head.min(self.slots) {
            self.times.push_front(0);
        }
    }

    /// The number of these units that the log admits now.
    pub(super) fn fits(&self, limit: &StoreLimit, now: u64, units: u64) -> u64 {
        limit.requests.saturating_sub(self.used(limit, now)).min(units)
    }

    /// The time at which a request with this cost can proceed. None if it can proceed now.
    pub(super) fn opens(&self, limit: &StoreLimit, cost: u64) -> Option<u64> {
        let spare = usize::try_from(limit.requests - cost).ok()?;
        Some(self.times.iter().rev().nth(spare)? + limit.period)
    }

    pub(super) fn full_at(&self, limit: &StoreLimit) -> u64 {
        self.times.back().map_or(0, |last| last + limit.period)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::{Quota, Strategy};

    use super::*;
    use crate::terms::StoreTerms;

    /// Five are used, three more are owed, and then units are given back.
    #[test]
    fn units_that_are_given_back_free_no_more_than_was_charged() {
        let quota = Quota::new(Strategy::SlidingWindowLog, 5, Duration::from_secs(60), None).expect("a quota");
        let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
        let (limit, start) = (&terms.raw()[0], 1_790_000_000_000_000);
        let mut log = Log::new(limit);
        (0..5).for_each(|at| log.charge(limit, start + at, 1));
        log.charge(limit, start + 5, 3);
        let mut freed = Vec::new();
        for _ in 0..8 {
            log.forget_newest(limit, start + 6, 1);
            freed.push(log.fits(limit, start + 6, 9));
        }
        assert_eq!(freed, [0, 0, 0, 1, 2, 3, 4, 5]);
        // After a period, the units that had no time do not count.
        (0..5).for_each(|at| log.charge(limit, start + at, 1));
        log.charge(limit, start + 5, 3);
        (0..5).for_each(|at| log.charge(limit, start + 70_000_000 + at, 1));
        log.forget_newest(limit, start + 70_000_006, 2);
        assert_eq!(log.fits(limit, start + 70_000_006, 9), 2);
    }
}
