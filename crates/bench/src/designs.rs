//! Designs for a contended limit that were tried and not chosen, kept so that anyone can repeat the measurement.
//!
//! Both are exact token buckets in one word (a theoretical arrival time), with only what a decision needs.

mod backoff;
mod combining;

pub(crate) use self::backoff::BackoffBucket;
pub(crate) use self::combining::CombiningBucket;

use std::time::Duration;

use weir_core::Time;

/// The arithmetic that both share.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    interval: u64,
    /// How far the theoretical arrival time may be ahead of the clock after a request.
    tolerance: u64,
}

impl Bucket {
    fn new(interval: Duration, burst: u32) -> Self {
        let interval = u64::try_from(interval.as_nanos()).expect("an interval of less than 584 years");
        Self { interval, tolerance: interval * u64::from(burst) }
    }

    /// The theoretical arrival time after one more request, if it is admitted.
    fn after(self, arrival: u64, now: Time) -> Option<u64> {
        let now = now.as_nanos();
        let after = arrival.max(now) + self.interval;
        (after <= now + self.tolerance).then_some(after)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;

    const BURST: u32 = 10_000;

    /// How many of four times the burst 4 threads get admitted while the clock stands still.
    fn admitted(take: impl Fn(usize) -> bool + Sync) -> u64 {
        let admitted = AtomicU64::new(0);
        let (admitted, take) = (&admitted, &take);
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    let passed = (0..BURST).filter(|_| take(number)).count();
                    admitted.fetch_add(u64::try_from(passed).expect("small"), Ordering::Relaxed);
                });
            }
        });
        admitted.load(Ordering::Relaxed)
    }

    #[test]
    fn both_hold_the_burst_exactly() {
        let now = Time::from_nanos(1_000_000_000);
        let interval = Duration::from_millis(1);
        let backoff = BackoffBucket::new(now, interval, BURST);
        assert_eq!(admitted(|_| backoff.take(now)), u64::from(BURST));
        let combining = CombiningBucket::new(now, interval, BURST);
        assert_eq!(admitted(|thread| combining.take(thread, now)), u64::from(BURST));
    }

    #[test]
    fn both_refill() {
        let now = Time::from_nanos(1_000_000_000);
        let interval = Duration::from_millis(1);
        let backoff = BackoffBucket::new(now, interval, 1);
        let combining = CombiningBucket::new(now, interval, 1);
        for (step, admits) in [(0, true), (0, false), (1, true), (0, false)] {
            let now = now.saturating_add(Duration::from_millis(step));
            assert_eq!(backoff.take(now), admits);
            assert_eq!(combining.take(0, now), admits);
        }
    }
}
