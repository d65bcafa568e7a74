//! The interval at which agents send their status: a second while agents are few. With many agents the interval grows,
//! so that one core can handle all statuses.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::Timing;

/// The interval between two statuses of one agent, shared by all links.
#[derive(Debug)]
pub struct StatusInterval {
    timing: Timing,
    millis: AtomicU64,
}

impl StatusInterval {
    /// Returns the shortest interval.
    pub fn new(timing: Timing) -> Self {
        let interval = Self { timing, millis: AtomicU64::new(0) };
        interval.spread(0);
        interval
    }

    /// Sets the number of agents.
    pub fn spread(&self, agents: usize) {
        let Timing { status_interval: shortest, longest_status_interval: longest, statuses_per_second, .. } =
            self.timing;
        let agents = u64::try_from(agents).unwrap_or(u64::MAX);
        let spread = Duration::from_millis(agents.saturating_mul(1000) / u64::from(statuses_per_second.max(1)));
        let every = spread.max(shortest).min(longest.max(shortest));
        self.millis.store(u64::try_from(every.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the current interval.
    pub fn every(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }
}

/// Returns true if the interval `asked`, at which an agent sends its status, is close enough to the interval `wanted`.
pub(super) fn is_as_often(asked: Duration, wanted: Duration) -> bool {
    wanted.saturating_mul(4) <= asked.saturating_mul(5) && asked.saturating_mul(4) <= wanted.saturating_mul(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_agents_report_less_often_each() {
        let interval = StatusInterval::new(Timing::default());
        for (agents, millis) in [(0, 1000), (1, 1000), (1000, 1000), (2500, 2500), (10_000, 10_000), (50_000, 10_000)] {
            interval.spread(agents);
            assert_eq!(interval.every(), Duration::from_millis(millis), "{agents} agents");
        }
    }
}
