//! The only module of this crate that reads a clock or converts between `weir_core::Time` and tokio's instants.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::{
    sync::OnceLock,
    time::{self, Duration, SystemTime},
};

use tokio::time::Instant;
use weir_core::Time;

/// A clock that reads the Unix time once, at its start, and adds the elapsed time of a monotonic clock. Its time never
/// decreases, windows are aligned to Unix time, and later changes of the system's clock have no effect.
///
/// `quanta` reads the elapsed time from the processor's time stamp counter if the counter is reliable, otherwise from
/// the system. A decision costs about 3 ns, and a reading of the system's clock would cost 25 ns. The first clock of a
/// process calibrates the counter against the system's monotonic clock, in 10 ms; then it drifts by a few parts per
/// million.
///
/// ```
/// let clock = weir_tower::MonotonicClock::start();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    /// The difference between Unix time and the source's nanoseconds, modulo 2^64.
    offset: u64,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Counter(&'static quanta::Clock, Scale),
    Tokio(Instant),
}

/// Converts steps of the counter to nanoseconds. quanta's own conversion has a shift and branches that take as long as
/// a decision.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// The whole nanoseconds per step.
    whole: u64,
    /// The fraction of a nanosecond per step, in multiples of 2^-64.
    fraction: u64,
}

impl Scale {
    /// Measures the counter with the system's clock in nanoseconds. quanta's own calibration is not used: if the process
    /// is interrupted between quanta's first two readings, its clock can run too fast or too slow by more than one percent.
    fn measure(counter: impl Fn() -> u64, system: impl Fn() -> u64) -> Self {
        let mut start = Moment::read(&counter, &system);
        loop {
            let end = Moment::read(&counter, &system);
            let nanos = end.nanos.saturating_sub(start.nanos);
            if nanos >= CALIBRATION {
                let Some(steps) = end.steps.checked_sub(start.steps).filter(|steps| *steps > 0) else {
                    // The virtual machine has moved to another processor.
                    start = end;
                    continue;
                };
                let fraction = (u128::from(nanos % steps) << u64::BITS) / u128::from(steps);
                return Self { whole: nanos / steps, fraction: fraction.try_into().expect("less than one") };
            }
        }
    }

    /// Returns nanoseconds modulo 2^64: only differences between readings are meaningful.
    #[inline]
    fn nanos(&self, reading: u64) -> u64 {
        let (_, nanos) = reading.carrying_mul(self.fraction, 0);
        reading.wrapping_mul(self.whole).wrapping_add(nanos)
    }
}

/// The time for which the counter is compared with the system's clock, in nanoseconds.
const CALIBRATION: u64 = 10_000_000;

/// What the counter and the system's clock show at the same time.
#[derive(Clone, Copy, Debug)]
struct Moment {
    steps: u64,
    nanos: u64,
}

impl Moment {
    /// Reads the counter between two readings of the system's clock, many times. The reading with the shortest time
    /// between the two is the one in which nothing interrupted this thread.
    fn read(counter: &impl Fn() -> u64, system: &impl Fn() -> u64) -> Self {
        const READINGS: usize = 100;
        let readings = (0..READINGS).map(|_| {
            let (before, steps, after) = (system(), counter(), system());
            let duration = after.saturating_sub(before);
            (duration, Self { steps, nanos: before + duration / 2 })
        });
        let (_, moment) = readings.min_by_key(|(duration, _)| *duration).expect("at least one reading");
        moment
    }
}

impl MonotonicClock {
    /// Starts a clock, and reads the system's time once. The first call in a process takes 10 ms.
    ///
    /// ```
    /// let clock = weir_tower::MonotonicClock::start(); // once per process; copies share the start
    /// let copy = clock;
    /// let earlier = clock.now();
    /// assert!(copy.now() >= earlier);
    /// ```
    pub fn start() -> Self {
        static CLOCK: OnceLock<(quanta::Clock, Scale)> = OnceLock::new();
        let (clock, scale) = CLOCK.get_or_init(|| {
            let (clock, started) = (quanta::Clock::new(), time::Instant::now());
            let scale = Scale::measure(|| clock.raw(), || nanos(started.elapsed()));
            (clock, scale)
        });
        Self { offset: unix_nanos().wrapping_sub(scale.nanos(clock.raw())), source: Source::Counter(clock, *scale) }
    }

    /// Starts a clock that uses tokio's time. Tests can pause tokio's time. Then the limits pause with the timers, and
    /// a test that covers a day finishes immediately.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let clock = weir_tower::MonotonicClock::of_tokio();
    /// let start = clock.now();
    /// tokio::time::sleep(Duration::from_secs(3600)).await; // returns immediately, because time is paused
    /// assert_eq!(clock.now().duration_since(start), Duration::from_secs(3600));
    /// # }
    /// ```
    pub fn of_tokio() -> Self {
        Self { offset: unix_nanos(), source: Source::Tokio(Instant::now()) }
    }

    /// Returns the current time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// let clock = weir_tower::MonotonicClock::start();
    /// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// assert!(limiter.charge(clock.now(), 1).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn now(&self) -> Time {
        let nanos = match self.source {
            Source::Counter(clock, scale) => scale.nanos(clock.raw()),
            Source::Tokio(start) => nanos(Instant::now().duration_since(start)),
        };
        Time::from_nanos(self.offset.wrapping_add(nanos))
    }

    /// Whether this clock has a finer resolution than tokio's timers.
    pub(crate) const fn is_fine(&self) -> bool {
        matches!(self.source, Source::Counter(..))
    }

    /// Converts a time to an instant of tokio's timers.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        let (now, wait) = (Instant::now(), time.duration_since(self.now()));
        now.checked_add(wait).unwrap_or(now + FAR)
    }
}

/// `Duration::as_nanos` would return 128 bits; 64 bits are enough for 584 years.
fn nanos(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

/// Reads the system's clock, limited to the years 1970 to 2262. Only the alignment of windows depends on this time.
/// Within these bounds, the clock can advance without an overflow, and a core whose counter lags behind cannot compute
/// a time before 1970.
fn unix_nanos() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::default().saturating_add(unix).as_nanos().clamp(1_000_000_000, u64::MAX / 2)
}

/// The delay of a timer whose end cannot be represented: 30 years.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use weir_fuzz::Random;

    use super::*;

    /// A counter and a system's clock of one thread, which is often interrupted.
    struct Machine {
        nanos: Cell<u64>,
        random: RefCell<Random>,
    }

    impl Machine {
        /// Each reading takes 30 ns. One in four is interrupted for up to 3 ms.
        fn read(&self) -> u64 {
            let mut random = self.random.borrow_mut();
            let interruption = if random.below(4) == 0 { random.below(3_000_000) as u64 } else { 0 };
            self.nanos.replace(self.nanos.get() + 30 + interruption)
        }
    }

    #[test]
    fn interruptions_do_not_change_the_speed_of_the_clock() {
        // 2.4 GHz, and counters with the frequencies of ARM servers.
        for (steps, per_nanos) in [(12, 5), (1, 40), (1, 1), (5, 8)] {
            for seed in 0..200 {
                let machine = Machine { nanos: Cell::new(0), random: RefCell::new(Random::new(seed)) };
                let counter = || 1_000_000_007 + machine.read() * steps / per_nanos;
                let scale = Scale::measure(counter, || machine.read());
                let hour = 3_600_000_000_000_u64;
                let measured = scale.nanos(hour * steps / per_nanos);
                let wrong_by = measured.abs_diff(hour);
                assert!(
                    wrong_by < hour / 100_000,
                    "{wrong_by} ns an hour, {steps} steps per {per_nanos} ns, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn a_counter_that_goes_back_is_measured_again() {
        let machine = Machine { nanos: Cell::new(0), random: RefCell::new(Random::new(1)) };
        // At 5 ms, another processor continues with a smaller count.
        let counter = || match machine.read() {
            nanos @ ..5_000_000 => 10_000_000_000 + nanos,
            nanos => nanos,
        };
        let scale = Scale::measure(counter, || machine.read());
        assert!(scale.nanos(1_000_000_000).abs_diff(1_000_000_000) < 10_000);
    }
}
