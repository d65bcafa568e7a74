//! The limiters that a team would write by hand: a bucket of floats, which is refilled on each request.

use std::{
    collections::HashMap,
    hash::RandomState,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use dashmap::DashMap;

use crate::clock;

pub(super) const WEIR: &str = "weir";
pub(super) const DASHMAP: &str = "DashMap";
pub(super) const MUTEX: &str = "Mutex<HashMap>";
pub(super) const LIMITERS: [&str; 3] = [WEIR, DASHMAP, MUTEX];

pub(super) const PER_SECOND: f64 = 100.0;
/// The burst of a bucket.
pub(super) const BUCKET: f64 = 200.0;

/// The buckets in a `DashMap`, with the default hasher of `HashMap`.
pub(super) type DashBuckets = Arc<DashMap<IpAddr, Bucket, RandomState>>;
pub(super) type MutexBuckets = Arc<Mutex<HashMap<IpAddr, Bucket>>>;

/// A bucket: its tokens at the time of the last request.
pub(super) struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full() -> Self {
        Self { tokens: BUCKET, at: clock::now() }
    }

    fn take(&mut self) -> bool {
        let now = clock::now();
        self.tokens = (self.tokens + (now - self.at).as_secs_f64() * PER_SECOND).min(BUCKET);
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
        self.entry(client).or_insert_with(Bucket::full).take()
    }
}

impl Take for MutexBuckets {
    fn take(&self, client: IpAddr) -> bool {
        let mut buckets = self.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.entry(client).or_insert_with(Bucket::full).take()
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
        holds(&DashBuckets::default());
        holds(&MutexBuckets::default());
    }
}
