//! How many requests of each key are in flight.
//!
//! Only keys with requests in flight take memory, so no key is ever evicted and every count is exact. A count changes
//! under the lock of its shard, for as long as it takes to find the key.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, RandomState},
    num::NonZeroU64,
    sync::Arc,
};

use super::Full;
use crate::sync::{Mutex, lock};

/// With this number, threads seldom lock the same shard, also on large machines.
const SHARDS: usize = 64;

type Shard = Mutex<HashMap<Box<[u8]>, u64>>;

/// Limits the number of requests of each key in flight. Clones share all counts.
///
/// The limit is an argument of each request. So keys can have different limits, and a new limit applies to the next
/// request.
///
/// ```
/// use std::num::NonZeroU64;
/// use weir_core::InFlightByKey;
///
/// let in_flight = InFlightByKey::new();
/// let limit = NonZeroU64::MIN;
/// let permit = in_flight.acquire(b"ann", 1, limit)?;
/// assert!(in_flight.acquire(b"ann", 1, limit).is_err());
/// assert!(in_flight.acquire(b"bob", 1, limit).is_ok());
/// drop(permit);
/// assert!(in_flight.acquire(b"ann", 1, limit).is_ok());
/// # Ok::<(), weir_core::Full>(())
/// ```
#[derive(Clone, Debug)]
pub struct InFlightByKey {
    shards: Arc<[Shard]>,
    hasher: RandomState,
}

/// The capacity that one request of a key uses. Dropping the permit gives it back.
///
/// ```
/// # let in_flight = weir_core::InFlightByKey::new();
/// let permit = in_flight.acquire(b"ann", 2, std::num::NonZeroU64::new(5).expect("not zero"))?;
/// assert_eq!(permit.in_use(), 2);
/// std::thread::spawn(move || drop(permit)).join().expect("no panic"); // wherever it is dropped
/// assert_eq!(in_flight.in_use(b"ann"), 0);
/// # Ok::<(), weir_core::Full>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the permit gives its capacity back"]
pub struct KeyPermit {
    shards: Arc<[Shard]>,
    shard: usize,
    key: Box<[u8]>,
    cost: u64,
    in_use: u64,
}

impl Default for InFlightByKey {
    fn default() -> Self {
        Self::new()
    }
}

impl InFlightByKey {
    /// Returns counts with nothing in flight.
    ///
    /// ```
    /// assert_eq!(weir_core::InFlightByKey::new().total(), 0);
    /// ```
    pub fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect(), hasher: RandomState::new() }
    }

    /// Admits a request of weight `cost` if the key's requests in flight stay within `limit`. A cost of 0 takes no room
    /// and is never refused.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// # let in_flight = weir_core::InFlightByKey::new();
    /// let three = NonZeroU64::new(3).expect("not zero");
    /// let permit = in_flight.acquire(b"ann", 2, three)?;
    /// assert_eq!(in_flight.acquire(b"ann", 2, three).unwrap_err().in_use, 2);
    /// assert!(in_flight.acquire(b"ann", 2, NonZeroU64::new(4).expect("not zero")).is_ok());
    /// # drop(permit);
    /// # Ok::<(), weir_core::Full>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Full`]. It has no time to retry, because the end of a request is unknown.
    pub fn acquire(&self, key: &[u8], cost: u64, limit: NonZeroU64) -> Result<KeyPermit, Full> {
        let shard = self.shard(key);
        let mut counts = lock(&self.shards[shard]);
        let before = counts.get(key).copied().unwrap_or(0);
        let Some(in_use) = before.checked_add(cost).filter(|after| *after <= limit.get() || cost == 0) else {
            return Err(Full { in_use: before, limit: limit.get(), cost });
        };
        match counts.get_mut(key) {
            Some(count) => *count = in_use,
            None if cost == 0 => {}
            None => _ = counts.insert(key.into(), in_use),
        }
        drop(counts);
        Ok(KeyPermit { shards: Arc::clone(&self.shards), shard, key: key.into(), cost, in_use })
    }

    /// How much of a key is in flight.
    ///
    /// ```
    /// # let in_flight = weir_core::InFlightByKey::new();
    /// assert_eq!(in_flight.in_use(b"ann"), 0);
    /// ```
    pub fn in_use(&self, key: &[u8]) -> u64 {
        lock(&self.shards[self.shard(key)]).get(key).copied().unwrap_or(0)
    }

    /// The cost in flight of all keys together. The function reads the shards one after another.
    ///
    /// ```
    /// # let in_flight = weir_core::InFlightByKey::new();
    /// let limit = std::num::NonZeroU64::new(5).expect("not zero");
    /// let permits = (in_flight.acquire(b"ann", 2, limit)?, in_flight.acquire(b"bob", 1, limit)?);
    /// assert_eq!(in_flight.total(), 3);
    /// # drop(permits);
    /// # Ok::<(), weir_core::Full>(())
    /// ```
    pub fn total(&self) -> u64 {
        self.shards.iter().map(|shard| lock(shard).values().sum::<u64>()).sum()
    }

    fn shard(&self, key: &[u8]) -> usize {
        // The remainder is smaller than the number of shards.
        usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0)
    }
}

impl KeyPermit {
    /// How much of the key was in flight when this request was admitted, with this request.
    ///
    /// ```
    /// # let in_flight = weir_core::InFlightByKey::new();
    /// let limit = std::num::NonZeroU64::new(5).expect("not zero");
    /// let first = in_flight.acquire(b"ann", 1, limit)?;
    /// let second = in_flight.acquire(b"ann", 1, limit)?;
    /// assert_eq!((first.in_use(), second.in_use()), (1, 2));
    /// # Ok::<(), weir_core::Full>(())
    /// ```
    pub fn in_use(&self) -> u64 {
        self.in_use
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        let mut counts = lock(&self.shards[self.shard]);
        if let Entry::Occupied(mut count) = counts.entry(std::mem::take(&mut self.key)) {
            *count.get_mut() -= self.cost;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn limit(limit: u64) -> NonZeroU64 {
        NonZeroU64::new(limit).expect("not zero")
    }

    #[test]
    fn keys_without_requests_in_flight_take_no_memory() {
        let in_flight = InFlightByKey::new();
        let keys = |in_flight: &InFlightByKey| in_flight.shards.iter().map(|shard| lock(shard).len()).sum::<usize>();
        let permits: Vec<_> =
            (0..1_000_u64).map(|key| in_flight.acquire(&key.to_be_bytes(), 1, limit(1)).expect("free")).collect();
        assert!(in_flight.acquire(&5_u64.to_be_bytes(), 1, limit(1)).is_err());
        assert_eq!((keys(&in_flight), in_flight.total()), (1_000, 1_000));
        drop(permits);
        assert_eq!((keys(&in_flight), in_flight.total()), (0, 0));
    }

    #[test]
    fn a_cost_beyond_all_numbers_is_refused() {
        let in_flight = InFlightByKey::new();
        let permit = in_flight.acquire(b"ann", 1, limit(u64::MAX)).expect("free");
        assert!(in_flight.acquire(b"ann", u64::MAX, limit(u64::MAX)).is_err());
        drop(permit);
        assert!(in_flight.acquire(b"ann", u64::MAX, limit(u64::MAX)).is_ok());
    }

    #[test]
    fn a_lower_limit_counts_the_requests_in_flight() {
        let in_flight = InFlightByKey::new();
        let permits: Vec<_> = (0..3).map(|_| in_flight.acquire(b"", 1, limit(3)).expect("free")).collect();
        assert_eq!(in_flight.acquire(b"", 1, limit(2)).unwrap_err().in_use, 3);
        drop(permits);
        assert!(in_flight.acquire(b"", 1, limit(2)).is_ok());
    }

    #[test]
    fn a_cost_of_zero_is_never_refused_and_takes_no_memory() {
        let in_flight = InFlightByKey::new();
        let permit = in_flight.acquire(b"ann", 3, limit(3)).expect("free");
        let nothing = [b"ann", b"bob"].map(|key| in_flight.acquire(key, 0, limit(2)).expect("it takes no room"));
        assert_eq!(nothing.each_ref().map(KeyPermit::in_use), [3, 0]);
        drop(permit);
        assert!(in_flight.shards.iter().all(|shard| lock(shard).is_empty()));
    }
}
