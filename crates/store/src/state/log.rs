//! The times of the last admissions of a sliding window log. Request number *i* may go once number *i - requests* is
//! one period old.
//!
//! A log that was longer keeps the times that still count, so that a limit may be lowered and raised again.

use std::collections::VecDeque;

use crate::terms::{DAY, Limit};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// How many admissions there were, without those that were given back.
    head: u64,
    /// How many times are kept: `requests`, or more after it was lowered.
    slots: u64,
    /// The times, the oldest first.
    times: VecDeque<u64>,
}

impl Log {
    pub(super) fn new(limit: &Limit) -> Self {
        Self { head: 0, slots: limit.requests, times: VecDeque::new() }
    }

    /// The numbers of a log in a value. The times are elsewhere.
    pub(super) fn numbers(&self) -> [u64; 3] {
        [self.head, self.slots, 0]
    }

    /// The same admissions under another limit.
    pub(super) fn moved(&self, old: &Limit, new: &Limit, now: u64) -> Self {
        if old.requests == new.requests {
            return self.clone();
        }
        let times: VecDeque<u64> =
            self.times.iter().copied().filter(|time| time + old.period > self.time(now)).collect();
        let head = times.len() as u64;
        Self { head, slots: head.max(new.requests), times }
    }

    fn cut(&mut self) {
        while self.times.len() as u64 > self.slots {
            self.times.pop_front();
        }
    }

    /// The time of an admission at `now`: times never run backwards.
    pub(super) fn time(&self, now: u64) -> u64 {
        self.times.back().map_or(now, |&last| last.max(now))
    }

    pub(super) fn advance(&mut self, now: u64) {
        if self.time(now) > now + DAY {
            self.append(now, self.slots);
        }
    }

    pub(super) fn append(&mut self, at: u64, units: u64) {
        for _ in 0..units.min(self.slots) {
            self.times.push_back(at);
            self.head += 1;
        }
        self.cut();
    }

    /// How many admissions are in the period that ends at `now`.
    pub(super) fn used(&self, limit: &Limit, now: u64) -> u64 {
        let old = self.times.partition_point(|&time| time + limit.period <= now);
        (self.times.len() - old) as u64
    }

    /// Adds what is missing of `used` admissions in the period that ends at `at`. A log that has dropped some of that
    /// period has had enough others since.
    pub(super) fn raise(&mut self, limit: &Limit, at: u64, used: u64) {
        let is_full = self.times.len() as u64 >= self.slots;
        if is_full && self.times.front().is_some_and(|first| first + limit.period > at) {
            return;
        }
        let known = self.times.iter().filter(|&&time| time + limit.period > at && time <= at).count() as u64;
        self.append(self.time(at), used.saturating_sub(known));
    }

    /// Removes the last admissions, if they are of this time.
    pub(super) fn give_back(&mut self, at: u64, units: u64) {
        let units = units.min(self.times.iter().rev().take_while(|&&time| time == at).count() as u64);
        self.times.truncate(self.times.len() - usize::try_from(units).unwrap_or(0));
        self.head -= units;
        // What they replaced was old enough.
        while (self.times.len() as u64) < self.head.min(self.slots) {
            self.times.push_front(0);
        }
    }

    /// How many of these units may go now.
    pub(super) fn fits(&self, limit: &Limit, now: u64, units: u64) -> u64 {
        limit.requests.saturating_sub(self.used(limit, now)).min(units)
    }

    /// When a request with this cost may go. None if it may go now.
    pub(super) fn opens(&self, limit: &Limit, cost: u64) -> Option<u64> {
        let spare = usize::try_from(limit.requests - cost).ok()?;
        Some(self.times.iter().rev().nth(spare)? + limit.period)
    }

    pub(super) fn full_at(&self, limit: &Limit) -> u64 {
        self.times.back().map_or(0, |last| last + limit.period)
    }
}
