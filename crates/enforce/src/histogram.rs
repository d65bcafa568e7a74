//! A histogram of durations. Threads can add durations while another thread reads.
//!
//! No operation blocks or allocates. All operations use relaxed ordering: a reader can observe a duration in the count
//! but not yet in the sum. This is harmless, because the next scrape includes both.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper bounds of all buckets except the last, which has no bound. The bounds cover the response times of local apps
/// and the longest waits: `maxWait` is at most five minutes.
pub const BOUNDS: [Duration; 18] = [
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
];

/// The number of durations in each bucket, and the sum of all durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_nanos: AtomicU64,
}

/// The values of a [`Histogram`] at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistogramValues {
    /// The number of durations in each bucket: at most the bound with the same index, and longer than the previous
    /// bound. The last bucket counts durations above all bounds. The counts are not cumulative.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// The sum of all durations.
    pub sum: Duration,
}

impl Histogram {
    /// Adds one duration.
    pub fn record(&self, duration: Duration) {
        let bucket = BOUNDS.partition_point(|bound| *bound < duration);
        self.buckets[bucket].fetch_add(1, Relaxed);
        // 64 bits of nanoseconds are enough for 584 years.
        self.sum_nanos.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the values recorded so far.
    pub fn values(&self) -> HistogramValues {
        HistogramValues {
            buckets: self.buckets.each_ref().map(|count| count.load(Relaxed)),
            sum: Duration::from_nanos(self.sum_nanos.load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_the_bucket_below_it() {
        let histogram = Histogram::default();
        let mut expected = [0; BOUNDS.len() + 1];
        let mut sum = Duration::ZERO;
        for (index, bound) in BOUNDS.into_iter().enumerate() {
            let above = bound + Duration::from_nanos(1);
            histogram.record(bound);
            histogram.record(above);
            expected[index] += 1;
            expected[index + 1] += 1;
            sum += bound + above;
        }
        assert_eq!(histogram.values(), HistogramValues { buckets: expected, sum });
        assert!(BOUNDS.is_sorted());
        assert_eq!(BOUNDS.last(), Some(&Duration::from_secs(300)), "maxWait can be five minutes");
    }

    #[test]
    fn threads_lose_nothing() {
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| histogram.record(Duration::from_millis(3))));
            }
        });
        let values = histogram.values();
        assert_eq!((values.buckets[4], values.sum), (40_000, Duration::from_secs(120)));
    }
}
