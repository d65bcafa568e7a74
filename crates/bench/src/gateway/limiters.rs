//! The limiters that a team would write by hand: a bucket of floats, which is refilled on each request.

use std::{
    collections::HashMap,
    hash::RandomState,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use dashmap::DashMap;

use crate::clock;

pub(super) const WEIR: &str = "weir";
pub(crate) const DASHMAP: &str = "DashMap";
pub(crate) const MUTEX: &str = "Mutex<HashMap>";
pub(super) const LIMITERS: [&str; 3] = [WEIR, DASHMAP, MUTEX];

/// The limit of each client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) requests: u32,
    pub(crate) period: Duration,
    /// The number of requests that may come at the same time.
    pub(crate) burst: u32,
}

/// As in the document that the comparison comes from.
pub(super) const RATE: Rate = Rate { requests: 100, period: Duration::from_secs(1), burst: 200 };

impl Rate {
    /// The most that a client may get in this time.
    pub(crate) fn most(self, seconds: f64) -> f64 {
        f64::from(self.burst) + self.per_second() * seconds
    }

    fn per_second(self) -> f64 {
        f64::from(self.requests) / self.period.as_secs_f64()
    }
}

/// The buckets in a `DashMap`, with the default hasher of `HashMap`.
#[derive(Clone)]
pub(super) struct DashBuckets {
    rate: Rate,
    buckets: Arc<DashMap<IpAddr, Bucket, RandomState>>,
}

#[derive(Clone)]
pub(super) struct MutexBuckets {
    rate: Rate,
    buckets: Arc<Mutex<HashMap<IpAddr, Bucket>>>,
}

impl DashBuckets {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, buckets: Arc::default() }
    }
}

impl MutexBuckets {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, buckets: Arc::default() }
    }
}

/// A bucket: its tokens at the time of the last request.
pub(super) struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate) -> Self {
        Self { tokens: f64::from(rate.burst), at: clock::now() }
    }

    fn take(&mut self, rate: Rate) -> bool {
        let now = clock::now();
        self.tokens = (self.tokens + (now - self.at).as_secs_f64() * rate.per_second()).min(f64::from(rate.burst));
        self.at = now;
        let admitted = self.tokens >= 1.0;
        if admitted {
            self.tokens -= 1.0;
        }
        admitted
    }
}

/// Decides on one request of a client.
pub(super) trait Take: Clone + Send + Sync + 'static {
    fn take(&self, client: IpAddr) -> bool;
}

impl Take for DashBuckets {
    fn take(&self, client: IpAddr) -> bool {
        self.buckets.entry(client).or_insert_with(|| Bucket::full(self.rate)).take(self.rate)
    }
}

impl Take for MutexBuckets {
    fn take(&self, client: IpAddr) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.entry(client).or_insert_with(|| Bucket::full(self.rate)).take(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(limiter: &impl Take) {
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().expect("an address"));
        let most = 100_000;
        let admitted = (0..most).take_while(|_| limiter.take(one)).count();
        assert!(admitted >= 200 && admitted < most, "{admitted}");
        assert!(limiter.take(other), "another client has a separate bucket");
    }

    #[test]
    fn a_bucket_is_emptied_by_its_own_client_only() {
        holds(&DashBuckets::new(RATE));
        holds(&MutexBuckets::new(RATE));
    }
}
