//! One word and one compare-and-swap. A thread that loses the race waits twice as long as the last time before it tries
//! again, so that the cache line changes its core less often.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use weir_core::Time;

use super::Bucket;

/// After this many turns, the thread that owns the cache line may be preempted: yield to it.
const LONGEST: u32 = 1 << 10;

#[derive(Debug)]
pub(crate) struct BackoffBucket {
    bucket: Bucket,
    arrival: AtomicU64,
}

impl BackoffBucket {
    pub(crate) fn new(now: Time, interval: Duration, burst: u32) -> Self {
        Self { bucket: Bucket::new(interval, burst), arrival: AtomicU64::new(now.as_nanos()) }
    }

    pub(crate) fn take(&self, now: Time) -> bool {
        let mut wait = 1;
        let mut arrival = self.arrival.load(Ordering::Relaxed);
        loop {
            let Some(after) = self.bucket.after(arrival, now) else { return false };
            if self.arrival.compare_exchange_weak(arrival, after, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return true;
            }
            if wait > LONGEST {
                thread::yield_now();
            } else {
                (0..wait).for_each(|_| hint::spin_loop());
                wait *= 2;
            }
            arrival = self.arrival.load(Ordering::Relaxed);
        }
    }
}
