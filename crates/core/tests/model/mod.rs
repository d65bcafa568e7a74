//! What each strategy means, written down as plainly as possible: no atomics, no words of bits, no cleverness. Everything
//! is kept as exact fractions (a request is `period` parts), so that there is nothing to round.
//!
//! The model is what limiters are compared with. It must never learn from them: whoever changes it changes what a
//! strategy means.

use weir_core::{Quota, Strategy};

/// One limit, used by one thread whose clock does not run backwards.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    quota: Quota,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// How many requests were admitted in the aligned window of this number.
    FixedWindow { window: i128, used: i128 },
    /// The same for the sliding window counter, with the count of the window before.
    Counter { window: i128, previous: i128, current: i128 },
    /// When requests were admitted, and how many. The last one may lie ahead: reserved.
    Log(Vec<(i128, i128)>),
    /// Parts of requests that are saved up at `at`; fewer than none if it is overdrawn or reservations wait.
    Bucket { parts: i128, at: i128 },
    /// Parts of requests in the line at `at`, those that have gone but keep the next from going included.
    Leaky { parts: i128, at: i128 },
}

impl Model {
    /// All is free.
    pub(crate) fn new(quota: Quota) -> Self {
        let state = match quota.strategy() {
            Strategy::FixedWindow => State::FixedWindow { window: 0, used: 0 },
            Strategy::SlidingWindowCounter => State::Counter { window: 0, previous: 0, current: 0 },
            Strategy::SlidingWindowLog => State::Log(Vec::new()),
            Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::Gcra => {
                State::Bucket { parts: i128::from(quota.burst()) * period(quota), at: 0 }
            }
            Strategy::LeakyBucket => State::Leaky { parts: 0, at: 0 },
        };
        Self { quota, state }
    }

    /// Whether the definition admits a request of this cost at this moment.
    pub(crate) fn admits(&self, now: u64, cost: u64) -> bool {
        self.admits_at(i128::from(now), i128::from(cost))
    }

    fn admits_at(&self, now: i128, cost: i128) -> bool {
        let (requests, period) = (requests(self.quota), period(self.quota));
        match &self.state {
            // A window that lies ahead has reservations: whoever comes later goes later.
            State::FixedWindow { window, .. } if *window > now / period => false,
            State::FixedWindow { .. } => self.used(now) + cost <= requests,
            State::Counter { window, .. } if *window > now / period => false,
            State::Counter { .. } => {
                let (previous, current) = self.counts(now);
                previous * (period - now % period) + (current + cost) * period <= requests * period
            }
            State::Log(_) => self.logged(now) + cost <= requests,
            State::Bucket { .. } => self.parts(now) - cost * period >= -i128::from(self.quota.debt()) * period,
            State::Leaky { .. } => self.parts(now) <= 0 && cost <= i128::from(self.quota.burst()) + 1,
        }
    }

    /// Counts a request that goes at `at` and was decided at `now`, whether or not the definition admits it.
    pub(crate) fn charge(&mut self, now: u64, at: u64, cost: u64) {
        let (period, cost) = (period(self.quota), i128::from(cost));
        let (now, at) = (i128::from(now), i128::from(at));
        let (used, counts, parts) = (self.used(at), self.counts(at), self.parts(now));
        match &mut self.state {
            State::FixedWindow { window, used: count } => (*window, *count) = (at / period, used + cost),
            State::Counter { window, previous, current } => {
                (*window, *previous, *current) = (at / period, counts.0, counts.1 + cost);
            }
            State::Log(_) if cost == 0 => {}
            State::Log(log) => log.push((at, cost)),
            State::Bucket { parts: left, at } => (*left, *at) = (parts - cost * period, now),
            State::Leaky { parts: line, at } => (*line, *at) = (parts + cost * period, now),
        }
    }

    /// The first moment from `now` on at which the definition admits this cost, if nobody else comes; none if it never
    /// does. Beyond the last moment of a clock, that.
    pub(crate) fn first(&self, now: u64, cost: u64) -> Option<u64> {
        if cost > self.quota.most() {
            return None;
        }
        let (from, wanted, requests, period) =
            (i128::from(now), i128::from(cost), requests(self.quota), period(self.quota));
        let next_window = (from / period + 1) * period;
        // Every moment at which a refusal can turn into an admission; the first that does is it.
        let candidates: Vec<i128> = match &self.state {
            State::FixedWindow { window, .. } => vec![from, window * period, next_window, (window + 1) * period],
            State::Counter { window, .. } => {
                let starts = [
                    from,
                    window * period,
                    next_window,
                    next_window + period,
                    (window + 1) * period,
                    (window + 2) * period,
                ];
                let slid = starts.map(|start| {
                    // From `start` on, the window before weighs less and less, until there is room.
                    let (previous, current) = self.counts(start);
                    let room = (requests - current - wanted) * period;
                    let weight = if previous == 0 { period } else { room.max(0) / previous };
                    (start / period * period + (period - weight).max(0)).max(start)
                });
                starts.into_iter().chain(slid).collect()
            }
            State::Log(log) => {
                let left = log.iter().map(|&(at, _)| at + period);
                // First come, first served: nobody goes before a request that waits.
                let last = log.last().map_or(from, |&(at, _)| at);
                left.chain([from, last]).filter(|&at| at >= last).collect()
            }
            State::Bucket { .. } => {
                let missing = (wanted - i128::from(self.quota.debt())) * period - self.parts(from);
                vec![from + ceil(missing.max(0), requests)]
            }
            State::Leaky { .. } => vec![from + ceil(self.parts(from), requests)],
        };
        let at = candidates.into_iter().filter(|&at| at >= from && self.admits_at(at, wanted)).min();
        Some(narrow(at.expect("what does not exceed the quota is admitted some time")))
    }

    /// Whether a request may join the line of a leaky bucket; the others have no line.
    pub(crate) fn has_room_in_line(&self, now: u64, cost: u64) -> bool {
        let (line, burst) = (self.parts(i128::from(now)), i128::from(self.quota.burst()));
        !matches!(self.state, State::Leaky { .. })
            || line + i128::from(cost) * period(self.quota) <= (burst + 1) * period(self.quota)
    }

    /// The first moment from `now` on at which nothing counts any more of what was admitted.
    pub(crate) fn idle(&self, now: u64) -> u64 {
        let (from, requests, period) = (i128::from(now), requests(self.quota), period(self.quota));
        narrow(from.max(match &self.state {
            State::FixedWindow { window, used: 0 } => window * period,
            State::FixedWindow { window, .. } => (window + 1) * period,
            State::Counter { window, previous, current } => match (previous, current) {
                (0, 0) => from,
                (_, 0) => (window + 1) * period,
                _ => (window + 2) * period,
            },
            State::Log(log) => log.last().map_or(from, |&(at, _)| at + period),
            State::Bucket { .. } => from + ceil(i128::from(self.quota.burst()) * period - self.parts(from), requests),
            State::Leaky { .. } => from + ceil(self.parts(from), requests),
        }))
    }

    fn used(&self, now: i128) -> i128 {
        match self.state {
            State::FixedWindow { window, used } if window == now / period(self.quota) => used,
            _ => 0,
        }
    }

    /// The counts of the window before and of this one.
    fn counts(&self, now: i128) -> (i128, i128) {
        match self.state {
            State::Counter { window, previous, current } => match now / period(self.quota) - window {
                0 => (previous, current),
                1 => (current, 0),
                _ => (0, 0),
            },
            _ => (0, 0),
        }
    }

    /// Those of the last period. One that came exactly a period ago has left; one that lies ahead has its place.
    fn logged(&self, now: i128) -> i128 {
        match &self.state {
            State::Log(log) => {
                log.iter().filter(|&&(at, _)| at > now - period(self.quota)).map(|&(_, cost)| cost).sum()
            }
            _ => 0,
        }
    }

    fn parts(&self, now: i128) -> i128 {
        match self.state {
            State::Bucket { parts, at } => {
                (parts + (now - at) * requests(self.quota)).min(i128::from(self.quota.burst()) * period(self.quota))
            }
            State::Leaky { parts, at } => (parts - (now - at) * requests(self.quota)).max(0),
            _ => 0,
        }
    }
}

fn requests(quota: Quota) -> i128 {
    i128::from(quota.requests())
}

fn period(quota: Quota) -> i128 {
    i128::try_from(quota.period().as_nanos()).expect("a period is at most 2^61 ns")
}

fn ceil(parts: i128, requests: i128) -> i128 {
    (parts + requests - 1).div_euclid(requests)
}

fn narrow(moment: i128) -> u64 {
    u64::try_from(moment).unwrap_or(u64::MAX)
}
