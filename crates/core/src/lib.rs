//! Rate limits that threads share: exact at any contention, and tunable without losing count.
//!
//! A [`Quota`] says what is allowed; a [`Limiter`] counts one limit in one atomic word; a [`RuleLimiter`] counts all the
//! limits of a rule, together or, by key, for each client. [`check_all`] and [`charge_all`] charge several or none.
//!
//! Nothing here reads a clock, waits, spawns or does input and output: time is an argument ([`Time`]), and every answer
//! is given at once. No decision takes a lock, but that on a key that a table
//! does not know yet.

mod all;
mod in_flight;
mod keyed;
mod lease;
mod limiter;
mod meter;
mod quota;
mod rule;
mod rules;
mod standing;
mod supply;
mod sync;
mod terms;
mod time;

pub use all::{Charges, RefusedBy, check_all};
pub use in_flight::{Full, InFlight, Permit};
pub use keyed::KeyStats;
pub use limiter::{Admitted, Charge, Limiter, Refused, Reserved};
pub use quota::{InvalidQuota, Quota, Strategy};
pub use rule::{RuleAdmitted, RuleCharge, RuleLimiter, RuleRefused, RuleReserved, Tightest};
pub use rules::{Ask, RuleRefusedAt, charge_all};
pub use standing::Standing;
pub use terms::{InvalidTerms, MAX_LIMITS, Terms};
pub use time::Time;
