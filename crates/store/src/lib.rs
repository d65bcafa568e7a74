//! Limits that several pods share: a store hands out *seats*.
//!
//! A seat is one unit of a limit. The store charges it once, and a pod uses it once. A pod *takes* seats from a store:
//! for requests that wait, and in advance for later requests. A seat can be used from the moment the ceiling of the
//! limit reaches it until the floor passes it. So all pods together never admit more than the limit, and a pod that
//! holds seats decides without a round trip to the store.
//!
//! ```
//! use std::time::Duration;
//! use weir_core::{Quota, Strategy};
//! use weir_store::{Key, MemoryStore, Next, Take, StoreTerms};
//!
//! let quota = Quota::new(Strategy::TokenBucket, 5, Duration::from_secs(900), None)?;
//! let terms = StoreTerms::new(1, &[(0, quota)])?;
//! let (store, now) = (MemoryStore::new(), 1_790_000_000_000_000);
//! let key = Key::new("limits shop/api.per-client", 0xfeed)?;
//!
//! let reply = store.take(&key, &Take { requests: 7, ..Take::new(&terms) }, || now)?;
//! assert_eq!(reply.granted, 5);
//! assert_eq!(reply.next, Next::At(now + 180_000_000)); // one unit refills every three minutes
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate reads no clock: times, or a function that returns the time, are arguments. Times of a store are whole
//! microseconds since the Unix epoch.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests read clocks"))]

mod backend;
mod breaker;
mod budget;
mod client;
mod connection;
mod deadline;
mod lock;
mod memcached;
mod operator;
mod redis;
mod shared;
mod store_rule;

#[cfg(test)]
mod tests;

pub use weir_seats::{
    BanChange, BanQuestion, InvalidKey, InvalidStoreTerms, Key, Left, Level, MemoryStore, Next, Reply, Seats,
    StoreClock, StoreError, StoreTerms, StoreTime, Take,
};

pub use self::{
    backend::Backend,
    budget::KeyBudget,
    client::{OpenStore, StoreClient, StoreCondition, StoreParts, StoreStats},
    memcached::{InvalidMemcached, MemcachedStore},
    operator::{OperatorChannel, OperatorStore},
    redis::{Credentials, InvalidRedis, RedisConfig, RedisStore, RedisTls, Topology},
    shared::{
        Claim, Grant, InvalidRule, KeyView, OnLoss, PendingGrant, Refused, SharedKeys, SharedLimiter, SharedRule,
        UsedSeats,
    },
};
