//! The arithmetic of limits that several programs share: *seats*.
//!
//! A seat is one unit of a limit. A counter charges it once, and a program uses it once. A program *takes* seats: for
//! requests that wait, and in advance for later requests. A seat can be used from the moment the ceiling of the limit
//! reaches it until the floor passes it. So all programs together never admit more than the limit, and a program that
//! holds seats decides without a question.
//!
//! ```
//! use std::time::Duration;
//! use weir_core::{Quota, Strategy};
//! use weir_seats::{Key, MemoryStore, Next, StoreTerms, Take};
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
//! The crate has no I/O and reads no clock: times, or a function that returns the time, are arguments. Times are whole
//! microseconds since the Unix epoch. The crate `weir-store` asks stores over the network, and its script for Redis
//! computes the same results as [`model`].

pub mod bucket;
pub mod model;
pub mod state;
pub mod terms;

mod ban;
mod bounds;
mod error;
mod key;
mod memory;
mod message;
mod reserve;
mod seats;
mod take;
mod value;

pub use self::{
    ban::{BanChange, BanQuestion, Banned, EncodedBan},
    bounds::{StoreClock, StoreTime},
    error::StoreError,
    key::{InvalidKey, Key, LONGEST_NAME},
    memory::MemoryStore,
    reserve::{Absent, ReservedUnits, part},
    seats::Seats,
    take::{EncodedReply, EncodedTake, Left, Level, Next, Reply, Take},
    terms::{InvalidStoreTerms, StoreTerms},
    value::Value,
};
