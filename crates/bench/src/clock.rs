//! The clocks of the measurements. No other file of the crate reads a clock or sleeps.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::time::{Duration, Instant, SystemTime};

use weir_core::Time;
use weir_tower::MonotonicClock;

#[inline]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn since(start: Instant) -> Duration {
    start.elapsed()
}

/// The current time of tokio's timers, which tests can pause.
pub(crate) fn timer_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Blocks this thread for the duration of a measurement, or for a pause between two measurements.
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// The default clock of shot-limit and governor, which reads the processor's counter. Time is an argument of Weir's
/// limiters, so a program can use them with any clock.
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
    use super::*;

    #[test]
    fn it_tells_the_same_time_as_ours() {
        let clock = QuantaClock::start();
        let ours = MonotonicClock::start();
        let apart = clock.now().duration_since(ours.now()).max(ours.now().duration_since(clock.now()));
        assert!(apart < Duration::from_secs(1), "{apart:?}");
    }
}
