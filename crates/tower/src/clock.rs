//! The only module of this crate that reads a clock, and the only one that converts between its times and tokio's.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::{
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use weir_core::Time;

/// Unix time at the start plus the time of a monotonic clock since: it never runs backwards, and windows are aligned to
/// Unix time. It ignores changes of the system's clock after the start.
///
/// `quanta` reads the elapsed time from the processor's time stamp counter if it is reliable, otherwise from the
/// system: a decision costs 3 ns, and a reading of the system's clock 25 ns. The counter is calibrated once against the
/// system's clock, usually in less than a millisecond. After that it drifts by some parts in a million.
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

/// Converts steps of the counter to nanoseconds. Like quanta's own conversion, but without a shift and branches that
/// take as long as a decision.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Nanoseconds per step: the whole part.
    whole: u64,
    /// The fraction, in multiples of 2^-64.
    fraction: u64,
}

impl Scale {
    fn of(clock: &quanta::Clock) -> Self {
        // Steps of up to 256 ns; over a year the rounding adds up to less than one nanosecond.
        const STEPS: u32 = 56;
        let nanos = clock.delta_as_nanos(0, 1 << STEPS);
        Self { whole: nanos >> STEPS, fraction: nanos << (u64::BITS - STEPS) }
    }

    /// Modulo 2^64, like the whole clock: only differences of readings are meaningful.
    #[inline]
    fn nanos(&self, reading: u64) -> u64 {
        let (_, nanos) = reading.carrying_mul(self.fraction, 0);
        reading.wrapping_mul(self.whole).wrapping_add(nanos)
    }
}

impl MonotonicClock {
    /// Reads the system's time, once.
    ///
    /// ```
    /// let clock = weir_tower::MonotonicClock::start(); // once, when the process starts; copies go on from there
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

    /// A clock that uses tokio's time, which tests can pause: limits then stand still with the timers, and a test of a
    /// day takes no time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let clock = weir_tower::MonotonicClock::of_tokio();
    /// let start = clock.now();
    /// tokio::time::sleep(Duration::from_secs(3600)).await; // paused: at once
    /// assert_eq!(clock.now().duration_since(start), Duration::from_secs(3600));
    /// # }
    /// ```
    pub fn of_tokio() -> Self {
        Self { offset: unix_nanos(), source: Source::Tokio(Instant::now()) }
    }

    /// The time now.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// let clock = weir_tower::MonotonicClock::start();
    /// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// assert!(limiter.check(clock.now(), 1).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn now(&self) -> Time {
        let nanos = match self.source {
            Source::Counter(clock, scale) => scale.nanos(clock.raw()),
            Source::Tokio(start) => {
                let passed = Instant::now().duration_since(start);
                // Not `Duration::as_nanos`, which returns 128 bits: 64 bits last 584 years.
                passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos())
            }
        };
        Time::from_nanos(self.offset.wrapping_add(nanos))
    }

    /// Whether it runs on its own, with a finer resolution than tokio's timers.
    pub(crate) const fn is_fine(&self) -> bool {
        matches!(self.source, Source::Counter(..))
    }

    /// The same time as an instant of tokio's timers.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        let (now, wait) = (Instant::now(), time.duration_since(self.now()));
        now.checked_add(wait).unwrap_or(now + FAR)
    }
}

/// A system clock before 1970 counts as 1970, and one after 2262 as 2262: only the alignment of windows depends on it.
/// Within these bounds, the clock can advance without an overflow, and a core whose counter lags does not get a time
/// before 1970.
fn unix_nanos() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::default().saturating_add(unix).as_nanos().clamp(1_000_000_000, u64::MAX / 2)
}

/// Later than any of tokio's timers can be.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
