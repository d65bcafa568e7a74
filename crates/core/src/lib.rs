//! Rate limits that threads share: exact under any contention, and adjustable without losing counts.
//!
//! Four threads share one limit and never exceed it together:
//!
//! ```
//! use std::thread;
//! use std::time::{Duration, Instant, UNIX_EPOCH};
//! use weir_core::{Limiter, Quota, Strategy, Time};
//!
//! // The caller's clock: Unix time at the start, then a monotonic clock. `weir_tower` has a faster clock.
//! let (unix, start) = (UNIX_EPOCH.elapsed()?, Instant::now());
//! let now = || Time::from_nanos(0).saturating_add(unix + start.elapsed());
//!
//! let quota = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(3600), None)?;
//! let limiter = Limiter::new(now(), quota);
//! let admitted: usize = thread::scope(|scope| {
//!     let ask = || (0..1000).filter(|_| limiter.charge(now(), 1).is_ok()).count();
//!     let threads = [scope.spawn(ask), scope.spawn(ask), scope.spawn(ask), scope.spawn(ask)];
//!     threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
//! });
//! assert_eq!(admitted, 100); // not 101
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The contents of an answer, and a change of a limit that is in use:
//!
//! ```
//! use std::time::Duration;
//! use weir_core::{Limiter, Quota, Strategy, Time};
//!
//! let now = Time::from_nanos(1_700_000_000_000_000_000);
//! let quota = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(1), Some(200))?;
//! let limiter = Limiter::new(now, quota);
//!
//! let admitted = limiter.charge(now, 150).expect("the burst of 200 is free");
//! assert_eq!(admitted.standing.remaining(), 50);
//! let refused = limiter.charge(now, 60).unwrap_err();
//! assert_eq!(refused.retry_after(), Some(Duration::from_millis(100)));
//!
//! // A retune keeps the usage: it gives no fresh burst, and the new rate applies from now on.
//! let limiter = limiter.retune(|| now, Quota::new(Strategy::TokenBucket, 1000, Duration::from_secs(1), Some(200))?);
//! assert_eq!(limiter.peek(now).remaining(), 50);
//! assert_eq!(limiter.peek(now).retry_after(60), Some(Duration::from_millis(10)));
//! # Ok::<(), weir_core::InvalidQuota>(())
//! ```
//!
//! # Overview
//!
//! | for | use |
//! |---|---|
//! | one limit | [`Limiter`]: [`charge`](Limiter::charge) now, [`enqueue`](Limiter::enqueue) to wait, [`peek`](Limiter::peek), [`retune`](Limiter::retune); [`reserve`](Limiter::reserve) as in `x/time/rate` |
//! | several limits on one request | [`charge_limiters`]: charges all or none |
//! | the limits of a rule, for all requests together or by key | [`RuleLimiter`] over [`Terms`]; the number of keys is bounded, and a known key takes no lock |
//! | several rules on one request | [`charge_rules`] |
//! | the number of requests in flight | [`InFlight`], and [`InFlightByKey`] for each key |
//!
//! # Strategies
//!
//! | [`Strategy`] | admits | state |
//! |---|---|---|
//! | `FixedWindow` | `requests` per aligned window; twice as many around a boundary | one word |
//! | `SlidingWindowCounter` | `requests` as the weighted sum of the current and the previous window | two words |
//! | `SlidingWindowLog` | exactly `requests` in any period | a word for each request |
//! | `TokenBucket` | a rate, with `burst` saved up | one word |
//! | `TokenBucketWithDebt` | a token bucket, overdrawn by at most `debt` | one word |
//! | `LeakyBucket` | requests at even intervals; up to `burst` wait in a queue | one word |
//! | `Gcra` | requests at strict intervals; `burst` is 1 by default | one word |
//!
//! All strategies support costs above one, reservations and refunds. A retune can change any strategy to any other.
//! Every answer contains the number of remaining requests and the time to wait, rounded so that a client that waits
//! this long is admitted.
//!
//! This crate reads no clock, spawns no thread and does no I/O: time is an argument ([`Time`]). Usually, a decision
//! neither waits for other threads nor takes a lock. There are two exceptions. Before a refusal, a decision can yield
//! up to a hundred times to a thread that moves leased admissions or stores the time of an admission in a log. A
//! decision takes a short lock if its key is new or in the overflow, for sixteen periods after a change of the limit,
//! and if the caller has a handle from before the change. `docs/design/counting.md` explains the algorithms.

mod all;
mod answer;
mod chain;
mod divisor;
mod forecast;
mod in_flight;
mod keyed;
mod lease;
mod limiter;
mod meter;
mod queue;
mod quota;
mod refused;
mod rule;
mod rules;
mod standing;
mod supply;
mod sync;
mod terms;
mod time;
mod windows;
mod word;

pub use self::{
    all::{Charges, charge_limiters},
    answer::{RuleAdmitted, RuleCharge, RuleChargedAhead, Tightest},
    in_flight::{Full, InFlight, InFlightByKey, KeyPermit, Permit},
    keyed::{KeyStats, KeySurvey},
    limiter::{Admitted, Charge, Limiter, Refused, Reserved},
    queue::{Position, Ticket},
    quota::{InvalidQuota, Quota, Strategy},
    refused::RuleRefused,
    rule::RuleLimiter,
    rules::{Demand, RuleCharged, RuleRefusedAt, charge_rules},
    standing::Standing,
    terms::{InvalidTerms, MAX_LIMITS, Terms},
    time::Time,
};
