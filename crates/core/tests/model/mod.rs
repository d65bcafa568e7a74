//! The definition of each strategy, as plain as possible: no atomics, no bit fields, no optimisation. All values are
//! exact fractions (a request is `period` parts), so nothing is rounded.
//!
//! Limiters are compared with the model. The model must never be derived from the limiters: a change of the model
//! changes the meaning of a strategy.

use weir_core::{Quota, Strategy};

/// One limit, used by one thread whose clock does not run backwards.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    quota: Quota,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// The number of requests admitted in the aligned window with this number.
    FixedWindow { window: i128, used: i128 },
    /// The counts of the aligned window with this number and of the previous window.
    Counter { window: i128, previous: i128, current: i128 },
    /// Times, each with the number of requests admitted then. The last time can be in the future: a reservation.
    Log(Vec<(i128, i128)>),
    /// The parts of requests that are saved at `at`. Negative if the bucket is overdrawn or has reservations.
    Bucket { parts: i128, at: i128 },
    /// The parts of requests in the bucket at `at`, including admitted requests that still delay the next request.
    Leaky { parts: i128, at: i128 },
}

impl Model {
    /// Returns a model with its full burst available.
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

    /// Returns true if the definition admits a request of this cost at this time.
    pub(crate) fn admits(&self, now: u64, cost: u64) -> bool {
        cost == 0 || self.admits_at(i128::from(now), i128::from(cost))
    }

    fn admits_at(&self, now: i128, cost: i128) -> bool {
        let (requests, period) = (requests(self.quota), period(self.quota));
        match &self.state {
            // A window in the future has reservations: later requests are admitted after them.
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

    /// Counts a request that was decided at `now` and is admitted at `at`, even if the definition does not admit it.
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

    /// Makes the newest charges smaller by `units`. A limit has at most its full credit, and a window gives back only its
    /// own requests.
    pub(crate) fn credit(&mut self, now: u64, units: u64) {
        let (quota, now, units) = (self.quota, i128::from(now), i128::from(units));
        let (used, counts, parts) = (self.used(now), self.counts(now), self.parts(now));
        match &mut self.state {
            // A reservation in a later window keeps its place, and nothing before it is given back.
            State::FixedWindow { window, .. } if *window > now / period(quota) => {}
            State::FixedWindow { window, used: count } => {
                (*window, *count) = (now / period(quota), (used - units).max(0));
            }
            State::Counter { window, previous, current } => {
                (*window, *previous, *current) = (now / period(quota), counts.0, (counts.1 - units).max(0));
            }
            // A reservation keeps its place, and nothing before it is given back.
            State::Log(log) if log.last().is_some_and(|&(at, _)| at > now) => {}
            State::Log(log) => {
                let mut units = units;
                for (_, cost) in log.iter_mut().rev().take_while(|(at, _)| *at > now - period(quota)) {
                    let less = units.min(*cost);
                    (*cost, units) = (*cost - less, units - less);
                }
                log.retain(|&(_, cost)| cost > 0);
            }
            State::Bucket { parts: left, at } => {
                let full = i128::from(quota.burst()) * period(quota);
                (*left, *at) = ((parts + units * period(quota)).min(full), now);
            }
            State::Leaky { parts: line, at } => (*line, *at) = ((parts - units * period(quota)).max(0), now),
        }
    }

    /// Returns the first time, not before `now`, at which the definition admits this cost if no other request arrives.
    /// None if it never does. The result is at most the last representable time.
    pub(crate) fn first(&self, now: u64, cost: u64) -> Option<u64> {
        if cost > self.quota.most() {
            return None;
        }
        if cost == 0 {
            return Some(now);
        }
        let (from, wanted, requests, period) =
            (i128::from(now), i128::from(cost), requests(self.quota), period(self.quota));
        let next_window = (from / period + 1) * period;
        // All times at which a refusal can become an admission. The result is the first of them at which the cost is
        // admitted.
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
                    // From `start` on, the weight of the previous window decreases until there is room.
                    let (previous, current) = self.counts(start);
                    let room = (requests - current - wanted) * period;
                    let weight = if previous == 0 { period } else { room.max(0) / previous };
                    (start / period * period + (period - weight).max(0)).max(start)
                });
                starts.into_iter().chain(slid).collect()
            }
            State::Log(log) => {
                let left = log.iter().map(|&(at, _)| at + period);
                // Requests are first come, first served: no request precedes a waiting request.
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
        Some(narrow(at.expect("a cost within the quota is admitted at some time")))
    }

    /// Returns true if a leaky bucket has room for a request to wait. Other strategies have no such bound.
    pub(crate) fn has_room_in_queue(&self, now: u64, cost: u64) -> bool {
        let (line, burst) = (self.parts(i128::from(now)), i128::from(self.quota.burst()));
        cost == 0
            || !matches!(self.state, State::Leaky { .. })
            || line + i128::from(cost) * period(self.quota) <= (burst + 1) * period(self.quota)
    }

    /// Returns the first time, not before `now`, at which no admitted request counts.
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

    /// Returns the counts of the previous window and of this window.
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

    /// Returns the requests of the last period. A request from exactly one period ago does not count. A reservation
    /// counts.
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
