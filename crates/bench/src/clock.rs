//! A third-party clock for Weir: time is an argument, so a program can use its own clock.

use weir_core::Time;
use weir_tower::MonotonicClock;

/// The default clock of shot-limit and governor, which reads the processor's counter.
#[derive(Clone, Debug)]
pub(crate) struct QuantaClock {
    clock: quanta::Clock,
    started: quanta::Instant,
    unix: Time,
}

impl QuantaClock {
    pub(crate) fn start() -> Self {
        let clock = quanta::Clock::new();
        let started = clock.now();
        Self { clock, started, unix: MonotonicClock::start().now() }
    }

    pub(crate) fn now(&self) -> Time {
        self.unix.saturating_add(self.clock.now().duration_since(self.started))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_tells_the_same_time_as_ours() {
        let clock = QuantaClock::start();
        let ours = MonotonicClock::start();
        let apart = clock.now().duration_since(ours.now()).max(ours.now().duration_since(clock.now()));
        assert!(apart < Duration::from_secs(1), "{apart:?}");
    }
}
