//! The only place of this crate that reads a clock, and the only one that knows how its times and tokio's go together.
#![expect(clippy::disallowed_methods, reason = "this is the crate's clock")]

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use weir_core::Time;

/// Unix time as it was at the start, plus what has passed since by a monotonic clock: it never runs backwards, and
/// windows are aligned to Unix time. Changes of the system's clock after the start do not show.
///
/// What has passed is read from the processor's time stamp counter, by `quanta`, where that can be trusted, and from the
/// system where not: a decision costs 3 ns, and the system's clock 25. It is calibrated against the system's once, in less
/// than a millisecond as a rule, and then goes its own way, by some parts in a million.
///
/// ```
/// let clock = weir_tower::MonotonicClock::start();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    /// What the source's nanoseconds lack to Unix time, modulo 2^64.
    offset: u64,
    source: Source,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Counter(&'static quanta::Clock, Scale),
    Tokio(Instant),
}

/// From steps of the counter to nanoseconds. As quanta's own, but without a shift and branches that take as long as a
/// decision does.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Nanoseconds of a step.
    whole: u64,
    /// And in 2^-64.
    fraction: u64,
}

impl Scale {
    fn of(clock: &quanta::Clock) -> Self {
        // Steps of up to 256 ns; in a year of nanoseconds the rounding adds up to less than one of them.
        const STEPS: u32 = 56;
        let nanos = clock.delta_as_nanos(0, 1 << STEPS);
        Self { whole: nanos >> STEPS, fraction: nanos << (u64::BITS - STEPS) }
    }

    /// Modulo 2^64, as the whole clock counts: only differences of readings mean anything.
    #[inline]
    fn nanos(&self, reading: u64) -> u64 {
        let (_, nanos) = reading.carrying_mul(self.fraction, 0);
        reading.wrapping_mul(self.whole).wrapping_add(nanos)
    }
}

impl MonotonicClock {
    /// Takes the system's time, once.
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

    /// The same by tokio's clock, which tests can pause: limits then stand still with the timers, and a day's worth of them
    /// is tested in no time.
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
                // Not `Duration::as_nanos`, which is of 128 bits: 64 hold 584 years.
                passed.as_secs() * 1_000_000_000 + u64::from(passed.subsec_nanos())
            }
        };
        Time::from_nanos(self.offset.wrapping_add(nanos))
    }

    /// Whether it goes on by itself, and finer than tokio's timers.
    pub(crate) const fn is_fine(&self) -> bool {
        matches!(self.source, Source::Counter(..))
    }

    /// The same moment as tokio's timers count it, from now on.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        let (now, wait) = (Instant::now(), time.duration_since(self.now()));
        now.checked_add(wait).unwrap_or(now + FAR)
    }
}

/// A system clock before 1970 counts as 1970, and one after 2262 as that: only the alignment of windows hangs on it, and
/// there is room to count on, and for a core whose counter lags.
fn unix_nanos() -> u64 {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::default().saturating_add(unix).as_nanos().clamp(1_000_000_000, u64::MAX / 2)
}

/// Later than any timer of tokio's can be.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);
