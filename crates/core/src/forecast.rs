//! The arithmetic of a queue: predicts when waiting requests will be admitted.
//!
//! A forecast copies the words of all limits of a request, and admits one request after the other on these copies, with
//! the code that makes real decisions. A forecast charges nothing. It is exact as long as no other thread charges,
//! refunds or retunes.

use std::time::Duration;

use crate::{
    Standing, Time,
    meter::{Meter, Stop},
    sync::AtomicU64,
};

/// The limits of one queue, in the state after the admission of all its requests.
#[derive(Debug)]
pub(crate) struct Forecast {
    limits: Vec<Copied>,
    /// The time at which the last request of the queue is admitted.
    at: Time,
}

/// A limit, with its own copy of the words.
#[derive(Debug)]
struct Copied {
    meter: Meter,
    words: Vec<AtomicU64>,
}

/// The limit with the longest wait, and its standing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Longest {
    pub(crate) limit: usize,
    pub(crate) standing: Standing,
}

impl Forecast {
    /// Returns a forecast from the words of each limit at `now`.
    pub(crate) fn new(now: Time, limits: impl IntoIterator<Item = (Meter, Vec<u64>)>) -> Self {
        let copied = |(meter, words): (Meter, Vec<u64>)| Copied {
            meter,
            words: words.into_iter().map(AtomicU64::new).collect(),
        };
        Self { limits: limits.into_iter().map(copied).collect(), at: now }
    }

    /// Returns true if only the sum of the costs matters: two requests of cost 1 are admitted like one request of cost
    /// 2.
    pub(crate) fn is_additive(&self) -> bool {
        matches!(self.limits.as_slice(), [only] if only.meter.is_additive())
    }

    /// Admits a sum of costs. The limits must be [additive](Self::is_additive).
    pub(crate) fn add(&mut self, cost: u128) {
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        for Copied { meter, words } in &self.limits {
            meter.add(words, self.at, cost);
        }
    }

    /// Returns the first time, not before `from`, at which this cost is admitted after all waiting requests. None if
    /// the cost is never admitted, or only at a time that is too late for a limit to represent.
    pub(crate) fn opens(&self, from: Time, cost: u64) -> Option<Time> {
        let mut at = self.at.max(from);
        // A limit that admits a cost at one time admits it at all later times, so one round per limit is enough. One
        // more round finds that no limit waits any longer.
        for _ in 0..self.limits.len() + 2 {
            let mut is_open = true;
            for limit in &self.limits {
                let wait = limit.wait(at, cost)?;
                is_open &= wait.is_zero();
                at = at.saturating_add(wait);
            }
            if is_open {
                return Some(at);
            }
        }
        None
    }

    /// Returns the end of time, for a request that can wait so long. None if its cost is never admitted.
    pub(crate) fn end(&self, cost: u64) -> Option<Time> {
        let fits = self.limits.iter().all(|Copied { meter, .. }| cost <= meter.quota().burst());
        fits.then_some(Time::from_nanos(u64::MAX))
    }

    /// Admits this cost at a time that [`opens`](Self::opens) returned.
    pub(crate) fn admit(&mut self, at: Time, cost: u64) {
        for Copied { meter, words } in &self.limits {
            let admitted = meter.charge(words, at, cost);
            debug_assert!(admitted.is_ok(), "{:?} opens at {at:?} for {cost}: {admitted:?}", meter.quota());
        }
        self.at = self.at.max(at);
    }

    /// Returns the time at which a new request of this cost is admitted. If the request is never admitted or a leaky
    /// bucket is full, the error contains the limit that refuses it.
    pub(crate) fn newcomer(&self, now: Time, cost: u64) -> Result<Time, Longest> {
        let opens = self.opens(now, cost).filter(|_| !self.overflows(now, cost));
        opens.ok_or_else(|| self.longest(now, cost))
    }

    /// Returns true if this cost would fill a leaky bucket beyond its burst.
    pub(crate) fn overflows(&self, now: Time, cost: u64) -> bool {
        self.limits.iter().any(|Copied { meter, words }| meter.overflows(words, now, cost))
    }

    /// Returns the limit that refuses a request of this cost at `now`.
    pub(crate) fn longest(&self, now: Time, cost: u64) -> Longest {
        let from = self.at.max(now);
        let wait = |limit: &Copied| limit.wait(from, cost).unwrap_or(Duration::MAX);
        let (limit, copied) =
            self.limits.iter().enumerate().max_by_key(|(_, limit)| wait(limit)).expect("a rule has limits");
        let quota = copied.meter.quota();
        let opens = self.opens(now, cost).map(|at| at.duration_since(now));
        // Behind a request that waits, nothing is left for this one.
        let remaining = if self.at > now { 0 } else { copied.remaining(now, cost) };
        Longest { limit, standing: Standing::queued(quota, (cost, remaining), opens) }
    }
}

impl Copied {
    /// Returns the number of whole requests that could be admitted, after a refusal of this cost.
    fn remaining(&self, at: Time, cost: u64) -> u64 {
        match self.meter.peek(&self.words, at, cost) {
            Ok(standing) | Err(Stop::Refused(standing)) => standing.remaining(),
            Err(Stop::Sealed) => unreachable!("a copy is never sealed"),
        }
    }

    fn wait(&self, at: Time, cost: u64) -> Option<Duration> {
        match self.meter.peek(&self.words, at, cost) {
            Ok(_) => Some(Duration::ZERO),
            // At the end of its numbers, a limit refuses without a wait: it never admits the cost.
            Err(Stop::Refused(standing)) => standing.retry_after(cost).filter(|wait| !wait.is_zero()),
            Err(Stop::Sealed) => unreachable!("a copy is never sealed"),
        }
    }
}
