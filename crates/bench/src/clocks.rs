//! A clock that is not ours, for Weir: time is an argument there, so that a program may bring its own.

use weir_core::Time;
use weir_tower::MonotonicClock;

/// The clock that shot-limit and governor take by default: it reads the processor's counter by itself.
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
