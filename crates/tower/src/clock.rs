//! The only module of this crate that reads a clock or converts between `weir_core::Time` and tokio's instants.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::{
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use weir_core::Time;

/// A clock that reads the Unix time once, at its start, and adds the elapsed time of a monotonic clock. Its time never
/// decreases, windows are aligned to Unix time, and later changes of the system's clock have no effect.
///
/// `quanta` reads the elapsed time from the processor's time stamp counter if the counter is reliable, otherwise from
/// the system. A decision costs about 3 ns, and a reading of the system's clock would cost 25 ns. The counter is
/// calibrated once against the system's clock, usually in less than a millisecond; then it drifts by a few parts per
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
    fn of(clock: &quanta::Clock) -> Self {
        // Precise for steps of up to 256 ns: over a year, the rounding error is less than one nanosecond.
        const STEPS: u32 = 56;
        let nanos = clock.delta_as_nanos(0, 1 << STEPS);
        Self { whole: nanos >> STEPS, fraction: nanos << (u64::BITS - STEPS) }
    }

    /// Returns nanoseconds modulo 2^64: only differences between readings are meaningful.
    #[inline]
    fn nanos(&self, reading: u64) -> u64 {
        let (_, nanos) = reading.carrying_mul(self.fraction, 0);
        reading.wrapping_mul(self.whole).wrapping_add(nanos)
    }
}

impl MonotonicClock {
    /// Starts a clock, and reads the system's time once.
    ///
    /// ```
    /// let clock = weir_tower::MonotonicClock::start(); // once per process; copies share the start
    /// let copy = clock;
    /// let earlier = clock.now();
    /// assert!(copy.now() >= earlier);
    /// ```
    pub fn start() -> Self {
        static CLOCK: OnceLock<quanta::Clock> = OnceLock::new();
        let clock = CLOCK.get_or_init(quanta::Clock::new);
        let scale = Scale::of(clock);
        Self { offset: unix_nanos().wrapping_sub(scale.nanos(clock.raw())), source: Source::Counter(clock, scale) }
    }

    /// Starts a clock that uses tokio's time. Tests can pause tokio's time: then the limits pause with the timers, and
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
            Source::Tokio(start) => {
                let passed = Instant::now().duration_since(start);
                // `Duration::as_nanos` would return 128 bits; 64 bits are enough for 584 years.
                passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos())
            }
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

/// Reads the system's clock, limited to the years 1970 to 2262. Only the alignment of windows depends on this time.
/// Within these bounds, the clock can advance without an overflow, and a core whose counter lags behind cannot compute
/// a time before 1970.
fn unix_nanos() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::default().saturating_add(unix).as_nanos().clamp(1_000_000_000, u64::MAX / 2)
}

/// The delay of a timer whose end cannot be represented: 30 years.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
