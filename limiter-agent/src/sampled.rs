//! One line in place of thousands: an event that happens often is logged when it happens first and then at most once a
//! second, with the number of those that were not.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use weir_core::{Limiter, Quota, Strategy, Time};

/// Says which events of one kind are logged.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// Made for the first event: most kinds never have one.
    limiter: OnceLock<Limiter>,
    unlogged: AtomicU64,
}

impl Sample {
    /// If this event is to be logged, how many came before it that were not.
    #[inline]
    pub(crate) fn take(&self, now: Time) -> Option<u64> {
        if self.limiter.get_or_init(|| one_a_second(now)).check(now, 1).is_err() {
            self.unlogged.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.unlogged.swap(0, Relaxed))
    }
}

fn one_a_second(now: Time) -> Limiter {
    let quota = Quota::new(Strategy::Gcra, 1, Duration::from_secs(1), None).expect("one a second is a quota");
    Limiter::new(now, quota)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_one_a_second_with_the_number_of_the_others() {
        let start = Time::from_nanos(1_700_000_000_000_000_000);
        let sample = Sample::default();
        let at = |millis| sample.take(start.saturating_add(Duration::from_millis(millis)));
        assert_eq!(
            [at(0), at(0), at(1), at(999), at(1000), at(1001), at(5000)],
            [Some(0), None, None, None, Some(3), None, Some(1)]
        );
    }
}
