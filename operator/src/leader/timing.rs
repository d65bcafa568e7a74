//! The duration of a Lease, the interval of its renewals, and the time for which its holder may rely on it.

use std::time::Duration;

/// The longest wait for a holder that does not renew, for any duration in the Lease.
pub(super) const LONGEST_LEASE: Duration = Duration::from_secs(300);

/// The duration of a Lease, and the interval of its renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    lease: Duration,
    renew: Duration,
}

/// An invalid [`LeaseTiming`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLeaseTiming {
    /// The Lease API supports only whole seconds.
    #[error("a lease must last a whole number of seconds from 2 to 300, not {0:?}")]
    Lease(Duration),
    /// The interval leaves the leader no time for a second attempt.
    #[error(
        "renewing every {renew:?} leaves no time for a second attempt in a lease of {lease:?}: renew at least three times in it"
    )]
    Renew {
        /// The renewal interval.
        renew: Duration,
        /// The duration of the lease.
        lease: Duration,
    },
}

impl LeaseTiming {
    /// Checks the two durations.
    ///
    /// # Errors
    ///
    /// The lease is not a whole number of seconds from 2 to 300, or is not renewed at least three times.
    pub fn new(lease: Duration, renew: Duration) -> Result<Self, InvalidLeaseTiming> {
        if lease < Duration::from_secs(2) || lease > LONGEST_LEASE || lease.subsec_nanos() != 0 {
            return Err(InvalidLeaseTiming::Lease(lease));
        }
        if renew.is_zero() || renew * 3 > lease {
            return Err(InvalidLeaseTiming::Renew { renew, lease });
        }
        Ok(Self { lease, renew })
    }

    /// Returns the time for which a leader may write after it sent a renewal. The rest of the lease allows for clock
    /// drift and for writes in transit.
    pub(super) fn term(&self) -> Duration {
        self.lease * 3 / 4
    }

    /// Returns the time limit of a request to the apiserver. The leader sends a renewal after the previous one has
    /// succeeded, and keeps its term if each takes at most this time. If a renewal takes longer, the leader gives it
    /// up, and a part of the term is left for another one.
    pub(super) fn answer(&self) -> Duration {
        (self.term() / 2).min((self.term() - self.renew) * 3 / 4)
    }

    /// Returns the time for which other candidates wait for a holder that does not renew.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the time between two renewals.
    pub fn renew(&self) -> Duration {
        self.renew
    }
}

/// Returns whole microseconds, the unit of sequences.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_timings_must_allow_a_second_attempt() {
        let timing =
            |lease: f64, renew: f64| LeaseTiming::new(Duration::from_secs_f64(lease), Duration::from_secs_f64(renew));
        for (lease, renew) in [(8.0, 2.0), (2.0, 0.5), (300.0, 100.0)] {
            assert!(timing(lease, renew).is_ok(), "{lease} {renew}");
        }
        for (lease, renew, expected) in [
            (1.0, 0.1, "a lease must last a whole number of seconds from 2 to 300, not 1s"),
            (2.5, 0.5, "a lease must last a whole number of seconds from 2 to 300, not 2.5s"),
            (301.0, 2.0, "a lease must last a whole number of seconds from 2 to 300, not 301s"),
            (
                8.0,
                3.0,
                "renewing every 3s leaves no time for a second attempt in a lease of 8s: renew at least three times in it",
            ),
            (
                8.0,
                0.0,
                "renewing every 0ns leaves no time for a second attempt in a lease of 8s: renew at least three times in it",
            ),
        ] {
            assert_eq!(timing(lease, renew).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_renewal_without_an_answer_leaves_time_for_another() {
        for (lease, renew, answer) in [(8, 2_000, 3_000), (8, 2_600, 2_550), (2, 600, 675), (30, 5_000, 11_250)] {
            let timing = LeaseTiming::new(Duration::from_secs(lease), Duration::from_millis(renew)).unwrap();
            assert_eq!(timing.answer(), Duration::from_millis(answer), "{lease} s, {renew} ms");
        }
    }
}
