//! How often agents tell their status, or are asked for it: each second while they are few, and no oftener all together than
//! a core has time for when they are many.
//!
//! Questions are asked some at a time, so that the operator wakes up ten times a second and not for each of them. Who goes on to
//! tell does so when a tenth of a second of the wall clock begins, for the same reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use super::Timing;
use super::vigil::Vigil;
use crate::clock;

/// Between two moments at which agents are asked.
const BEAT: Duration = Duration::from_millis(100);

/// When agents are asked. Links look at it whenever they have asked.
#[derive(Debug)]
pub struct Poll {
    timing: Timing,
    /// The time between two questions to one agent.
    millis: AtomicU64,
    /// The first beat.
    started: Instant,
    vigil: Arc<Vigil>,
}

impl Poll {
    /// As often as it may be.
    pub fn new(timing: Timing) -> Self {
        let poll = Self { timing, millis: AtomicU64::new(0), started: clock::now(), vigil: Vigil::new() };
        poll.spread(0);
        poll
    }

    /// How much later an agent may tell something than it should.
    pub fn patience(&self) -> Duration {
        self.timing.timeout
    }

    /// Notices which agents stop telling.
    pub fn vigil(&self) -> &Arc<Vigil> {
        &self.vigil
    }

    /// There are so many agents now.
    pub fn spread(&self, agents: usize) {
        let Timing { poll, poll_most, polls_per_second, .. } = self.timing;
        let agents = u64::try_from(agents).unwrap_or(u64::MAX);
        let spread = Duration::from_millis(agents.saturating_mul(1000) / u64::from(polls_per_second.max(1)));
        let every = spread.max(poll).min(poll_most.max(poll));
        self.millis.store(u64::try_from(every.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// When to ask an agent for the first time: anywhere within the time between two questions, because thousands of links
    /// may start at the same moment.
    pub fn first(&self, now: Instant) -> Instant {
        self.beat(now + self.every().mul_f64(rand::rng().random_range(0.0..=1.0)))
    }

    /// When to ask an agent again that was asked now: ten percent earlier or later than the others, so that a crowd
    /// that once came together does not stay together.
    pub fn next(&self, now: Instant) -> Instant {
        self.beat(now + self.every().mul_f64(rand::rng().random_range(0.9..=1.1)))
    }

    /// The first beat that is not before.
    pub fn beat(&self, due: Instant) -> Instant {
        let since = due.duration_since(self.started).as_millis();
        let beats = since.div_ceil(BEAT.as_millis());
        self.started + BEAT.saturating_mul(u32::try_from(beats).unwrap_or(u32::MAX))
    }

    /// The time between two questions to one agent, or two lines of what it goes on to tell.
    pub fn every(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_agents_are_asked_less_often_each() {
        let poll = Poll::new(Timing::default());
        for (agents, millis) in [(0, 1000), (1, 1000), (1000, 1000), (2500, 2500), (10_000, 10_000), (50_000, 10_000)] {
            poll.spread(agents);
            assert_eq!(poll.every(), Duration::from_millis(millis), "{agents} agents");
        }
    }

    #[test]
    fn questions_come_together_on_beats_and_spread_over_the_time_between() {
        let timing = Timing { poll: Duration::from_secs(10), ..Timing::default() };
        let poll = Poll::new(timing);
        let now = poll.started + Duration::from_secs(5) + Duration::from_micros(1);
        let since = |at: Instant| at.duration_since(poll.started);
        let first: Vec<_> = (0..1000).map(|_| since(poll.first(now))).collect();
        let next: Vec<_> = (0..1000).map(|_| since(poll.next(now))).collect();
        for (asked, from, to) in [(first, 5_000_u64, 15_100_u64), (next, 14_000, 16_100)] {
            assert!(asked.iter().all(|at| at.as_micros() % BEAT.as_micros() == 0), "{asked:?}");
            let (least, most) = (asked.iter().min().unwrap(), asked.iter().max().unwrap());
            let bounds = Duration::from_millis(from)..=Duration::from_millis(to);
            assert!(bounds.contains(least) && bounds.contains(most), "{least:?} {most:?}");
            // That a thousand lie in half of it happens in none of 10^290 runs.
            assert!(*most - *least > Duration::from_millis(to - from) / 2, "{least:?} {most:?}");
        }
    }
}
