//! A limiter with perfect memory, and the rules for the admissions of any limiter. Both use the whole history of
//! admissions and changes, in exact fractions. They share no code with the limiters that they judge.
//!
//! - A window or a log in force admits what its definition admits over the whole history, after any other strategies.
//! - A bucket continues with its tokens. While a window is in force, tokens flow in at the window's rate, up to its
//!   requests, and the window's admissions are taken from these tokens. Without this rule, a bucket and a window that
//!   alternate would admit more than each of them alone. A window can leave a debt until the time at which it would
//!   have ended. A window leaves its remaining requests, and no debt, if only windows and logs were in force for one of
//!   its periods, and owed nothing at a change, or if there was never a bucket.

use std::collections::VecDeque;

use weir_core::{Quota, Strategy};

use crate::suite::is_window;

/// The parts of a request, which are far smaller than any rounding of the code.
const PARTS: i128 = 1 << 50;

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    quota: Quota,
    /// The time at which the quota came into force.
    since: u64,
    /// The time since which no bucket counts, because only windows were in force and nothing was owed. `None` if there
    /// was never a bucket.
    bucket_until: Option<u64>,
    /// The tokens at the time `since`.
    had: i128,
    /// Times and costs, newest last.
    admitted: VecDeque<(u64, u64)>,
    tokens: i128,
    /// The part of a debt that a bucket did not take over when it started.
    forgiven: i128,
    at: u64,
}

fn nanos(quota: Quota) -> u64 {
    u64::try_from(quota.period().as_nanos()).expect("at most 2^61")
}

fn most_tokens(quota: Quota) -> i128 {
    let most = if quota.strategy() == Strategy::LeakyBucket { 1 } else { quota.burst() };
    i128::from(most) * PARTS
}

impl Memory {
    pub(crate) fn new(quota: Quota, now: u64) -> Self {
        let tokens = most_tokens(quota);
        let admitted = VecDeque::new();
        Self { quota, since: now, bucket_until: None, had: tokens, admitted, tokens, forgiven: 0, at: now }
    }

    /// Returns the number of requests admitted from this time on.
    fn since(&self, from: u64) -> u64 {
        self.admitted.iter().rev().take_while(|(at, _)| *at >= from).map(|(_, cost)| cost).sum()
    }

    fn flow(&self, nanos: u64) -> i128 {
        i128::from(self.quota.requests()) * i128::from(nanos) * PARTS / i128::from(self::nanos(self.quota))
    }

    fn flow_in(&mut self, now: u64) {
        let most = most_tokens(self.quota).max(if is_window(self.quota.strategy()) { self.tokens } else { i128::MIN });
        self.tokens = most.min(self.tokens + self.flow(now - self.at));
        self.at = now;
    }

    /// Returns true if the definition of the quota in force admits this cost.
    pub(crate) fn admits(&mut self, now: u64, cost: u64) -> bool {
        self.flow_in(now);
        let (requests, period) = (self.quota.requests(), nanos(self.quota));
        let start = now - now % period;
        match self.quota.strategy() {
            Strategy::FixedWindow => self.since(start) + cost <= requests,
            Strategy::SlidingWindowLog => self.since((now + 1).saturating_sub(period)) + cost <= requests,
            Strategy::SlidingWindowCounter => {
                let current = self.since(start);
                let previous = self.since(start.saturating_sub(period)) - current;
                u128::from(previous) * u128::from(period - now % period)
                    + u128::from(current + cost) * u128::from(period)
                    <= u128::from(requests) * u128::from(period)
            }
            _ => self.tokens - i128::from(cost) * PARTS >= -i128::from(self.quota.debt()) * PARTS,
        }
    }

    /// Returns true if the definition of a bucket admits this cost at a later time.
    pub(crate) fn admits_soon(&self, then: u64, cost: u64) -> bool {
        !is_window(self.quota.strategy()) && self.clone().admits(then, cost)
    }

    pub(crate) fn charge(&mut self, now: u64, cost: u64) {
        self.flow_in(now);
        self.tokens -= i128::from(cost) * PARTS;
        self.admitted.push_back((now, cost));
    }

    pub(crate) fn change(&mut self, now: u64, quota: Quota) {
        if quota == self.quota {
            return;
        }
        self.flow_in(now);
        let (old, period) = (self.quota, nanos(self.quota));
        if is_window(old.strategy()) {
            let left = i128::from(self.left(now)) * PARTS;
            let flown = self.had + self.flow(now - self.since);
            let least = left + flown.min(0);
            if self.bucket_until.is_none_or(|until| now - until >= period) {
                self.tokens = least;
            } else if old.strategy() != Strategy::FixedWindow {
                self.tokens = self.tokens.max(least);
            }
            if flown < 0 {
                self.bucket_until = self.bucket_until.map(|_| now);
            }
        } else {
            self.bucket_until = Some(now);
            if is_window(quota.strategy()) {
                self.tokens -= std::mem::take(&mut self.forgiven);
            }
        }
        self.quota = quota;
        if !is_window(quota.strategy()) {
            if old.strategy() == Strategy::FixedWindow {
                let least = -self.flow(period - now % period) - i128::from(quota.debt()) * PARTS;
                self.forgiven = (least - self.tokens).max(0);
                self.tokens = self.tokens.max(least);
            }
            self.tokens = self.tokens.min(most_tokens(quota));
        }
        (self.since, self.had) = (now, self.tokens);
    }

    /// Returns the number of requests of cost 1 that a window would admit now.
    fn left(&mut self, now: u64) -> u64 {
        let (mut least, mut more) = (0, self.quota.requests() + 1);
        while more - least > 1 {
            let middle = least + (more - least) / 2;
            if self.admits(now, middle) { least = middle } else { more = middle }
        }
        least
    }
}
