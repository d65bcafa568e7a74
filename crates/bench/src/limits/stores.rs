//! Tables of limits by key: those of Weir and governor, and the simplest correct table on each map, as a user would
//! write it.
//!
//! All peers use the same seeded hasher (foldhash), which is faster than the defaults of the maps. They store the
//! smallest possible token bucket: one word, the theoretical arrival time. No peer bounds or reclaims keys.

use std::{
    collections::HashMap,
    num::{NonZeroU32, NonZeroUsize},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use foldhash::fast::RandomState;
use governor::{
    Quota as GovernorQuota, RateLimiter,
    clock::DefaultClock,
    state::keyed::{DashMapStateStore, HashMapStateStore},
};
use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
use weir_tower::MonotonicClock;

use super::keys::Key;
use crate::clock::QuantaClock;

/// The limit of a key: one request per second, with a burst of a billion. During the run, no bucket is used up, and no
/// bucket becomes full, so no key is idle.
const INTERVAL: Duration = Duration::from_secs(1);
const BURST: u32 = 1_000_000_000;

pub(super) const NAMES: [&str; 8] = [
    "weir RuleLimiter::keyed", "weir, quanta's clock", "DashMap", "Mutex<HashMap>", "governor, DashMap store",
    "governor, HashMap store", "scc HashMap", "papaya HashMap",
];

/// The number of stores of Weir, which are the first ones of [`NAMES`].
pub(super) const OURS: usize = 2;

/// A limit for each key.
pub(super) trait Store<K>: Send + Sync {
    /// Charges one request of the key. Returns true if it was admitted.
    fn take(&self, key: &K) -> bool;

    /// Charges one request of each key. This is a method of the trait, so that a key needs no indirect call.
    fn take_all(&self, keys: &[K]) -> u64 {
        keys.iter().map(|key| u64::from(self.take(key))).sum()
    }
}

/// Creates the store with this index in [`NAMES`], for this number of keys.
pub(super) fn store<K: Key>(place: usize, keys: usize) -> Box<dyn Store<K>> {
    let clock = MonotonicClock::start();
    let hasher = RandomState::default();
    let quota = || {
        GovernorQuota::with_period(INTERVAL).expect("not zero").allow_burst(NonZeroU32::new(BURST).expect("not zero"))
    };
    match place {
        0 => Box::new(Ours::new(keys, move || clock.now())),
        1 => {
            let clock = QuantaClock::start();
            Box::new(Ours::new(keys, move || clock.now()))
        }
        2 => Box::new(Dash { clock, map: DashMap::with_hasher(hasher) }),
        3 => Box::new(Locked { clock, map: Mutex::new(HashMap::with_hasher(hasher)) }),
        4 => Box::new(RateLimiter::<K, _, DefaultClock>::dashmap_with_hasher(quota(), hasher)),
        5 => Box::new(RateLimiter::<K, _, DefaultClock>::hashmap_with_hasher(quota(), hasher)),
        6 => Box::new(Scc { clock, map: scc::HashMap::with_hasher(hasher) }),
        _ => Box::new(Papaya { clock, map: papaya::HashMap::with_hasher(hasher) }),
    }
}

/// The theoretical arrival time after one more request at `now`. None if the request is refused.
fn after(arrival: u64, now: u64) -> Option<u64> {
    let interval = 1_000_000_000;
    let after = arrival.max(now) + interval;
    (after <= now + interval * u64::from(BURST)).then_some(after)
}

fn take(arrival: &mut u64, now: u64) -> bool {
    let after = after(*arrival, now);
    *arrival = after.unwrap_or(*arrival);
    after.is_some()
}

struct Ours<C> {
    now: C,
    rule: RuleLimiter,
}

impl<C: Fn() -> Time> Ours<C> {
    fn new(keys: usize, now: C) -> Self {
        let quota = Quota::new(Strategy::TokenBucket, 1, INTERVAL, Some(u64::from(BURST))).expect("valid");
        let terms = Terms::new([("limit", quota)]).expect("one limit");
        let max_keys = NonZeroUsize::new(keys).expect("at least one");
        let rule = RuleLimiter::keyed(now(), terms, max_keys);
        Self { now, rule }
    }
}

impl<K: Key, C: Fn() -> Time + Send + Sync> Store<K> for Ours<C> {
    fn take(&self, key: &K) -> bool {
        key.with_bytes(|bytes| self.rule.charge(&self.now, bytes, 1).is_ok())
    }
}

struct Dash<K> {
    clock: MonotonicClock,
    map: DashMap<K, u64, RandomState>,
}

impl<K: Key> Store<K> for Dash<K> {
    fn take(&self, key: &K) -> bool {
        let now = self.clock.now().as_nanos();
        match self.map.get_mut(key) {
            Some(mut arrival) => take(&mut arrival, now),
            None => take(&mut self.map.entry(key.clone()).or_insert(now), now),
        }
    }
}

struct Locked<K> {
    clock: MonotonicClock,
    map: Mutex<HashMap<K, u64, RandomState>>,
}

impl<K: Key> Store<K> for Locked<K> {
    fn take(&self, key: &K) -> bool {
        let now = self.clock.now().as_nanos();
        let mut map = self.map.lock().expect("no thread panics while it holds the lock");
        match map.get_mut(key) {
            Some(arrival) => take(arrival, now),
            None => take(map.entry(key.clone()).or_insert(now), now),
        }
    }
}

impl<K: Key> Store<K> for RateLimiter<K, DashMapStateStore<K, RandomState>, DefaultClock> {
    fn take(&self, key: &K) -> bool {
        self.check_key(key).is_ok()
    }
}

impl<K: Key> Store<K> for RateLimiter<K, HashMapStateStore<K, RandomState>, DefaultClock> {
    fn take(&self, key: &K) -> bool {
        self.check_key(key).is_ok()
    }
}

struct Scc<K> {
    clock: MonotonicClock,
    map: scc::HashMap<K, u64, RandomState>,
}

impl<K: Key> Store<K> for Scc<K> {
    fn take(&self, key: &K) -> bool {
        let now = self.clock.now().as_nanos();
        match self.map.update_sync(key, |_, arrival| take(arrival, now)) {
            Some(admitted) => admitted,
            None => take(self.map.entry_sync(key.clone()).or_insert(now).get_mut(), now),
        }
    }
}

struct Papaya<K> {
    clock: MonotonicClock,
    map: papaya::HashMap<K, AtomicU64, RandomState>,
}

impl<K: Key> Store<K> for Papaya<K> {
    fn take(&self, key: &K) -> bool {
        let now = self.clock.now().as_nanos();
        let map = self.map.pin();
        let arrival = match map.get(key) {
            Some(arrival) => arrival,
            None => map.get_or_insert_with(key.clone(), || AtomicU64::new(now)),
        };
        arrival.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |arrival| after(arrival, now)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_admits_known_and_unknown_keys() {
        let keys: Vec<String> = (0..100).map(String::numbered).collect();
        for (place, name) in NAMES.iter().enumerate() {
            let store = store(place, keys.len());
            assert_eq!(store.take_all(&keys), 100, "{name}: unknown keys");
            assert_eq!(store.take_all(&keys), 100, "{name}: known keys");
        }
    }

    #[test]
    fn the_plain_bucket_holds_its_burst() {
        let mut arrival = 0;
        assert_eq!(after(u64::from(BURST) * 1_000_000_000, 0), None);
        assert!(take(&mut arrival, 5));
        assert_eq!(arrival, 1_000_000_005);
    }
}
