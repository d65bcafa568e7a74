//! Points in time as plain numbers. This crate never reads a clock: the caller passes the time to every decision.

use std::time::Duration;

/// If a level is further ahead of the clock than this, the clock was set back. Threads that race after reading the
/// clock cause only smaller distances.
pub(crate) const SET_BACK: Duration = Duration::from_hours(24);

/// A point in time, in nanoseconds since the Unix epoch as the caller counts them.
///
/// Read Unix time once when the process starts, and then add the time of a monotonic clock. So windows are aligned to
/// Unix time, and time never runs backwards. All arithmetic saturates, so that a wrong clock cannot cause a panic.
///
/// ```
/// use std::time::Duration;
/// use weir_core::Time;
///
/// let start = Time::from_nanos(1_000);
/// let later = start.saturating_add(Duration::from_nanos(5));
/// assert_eq!(later.duration_since(start), Duration::from_nanos(5));
/// assert_eq!(start.duration_since(later), Duration::ZERO); // the wrong order causes no underflow
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Returns the time this many nanoseconds after the Unix epoch.
    ///
    /// ```
    /// # use weir_core::Time;
    /// let epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    /// let now = Time::from_nanos(u64::try_from(epoch.as_nanos())?);
    /// assert!(now > Time::from_nanos(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the Unix epoch.
    ///
    /// ```
    /// # use weir_core::Time;
    /// assert_eq!(Time::from_nanos(5).as_nanos(), 5);
    /// ```
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time `duration` later, or the last representable time (in the year 2554).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::Time;
    /// assert_eq!(Time::from_nanos(5).saturating_add(Duration::from_micros(1)), Time::from_nanos(1005));
    /// assert_eq!(Time::from_nanos(5).saturating_add(Duration::MAX), Time::from_nanos(u64::MAX));
    /// ```
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// Returns the time `duration` earlier, or the Unix epoch.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::Time;
    /// assert_eq!(Time::from_nanos(1005).saturating_sub(Duration::from_micros(1)), Time::from_nanos(5));
    /// assert_eq!(Time::from_nanos(5).saturating_sub(Duration::from_micros(1)), Time::from_nanos(0));
    /// ```
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }

    /// Returns the time from `earlier` to this time. Zero if this time is not later.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::Time;
    /// let (earlier, later) = (Time::from_nanos(5), Time::from_nanos(1005));
    /// assert_eq!(later.duration_since(earlier), Duration::from_micros(1));
    /// assert_eq!(earlier.duration_since(later), Duration::ZERO);
    /// ```
    pub const fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Returns the whole nanoseconds of a duration. More than 584 years count as 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
