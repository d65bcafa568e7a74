//! Which of several operators leads: only the leader pushes to agents and writes statuses and events.
//!
//! ```text
//! Lease ──watch──► campaign ──► election (pure) ──► Term ──► engine, links, writer
//!    ▲                │
//!    └──claim, renew──┘
//! ```
//!
//! The candidates compete for one `coordination.k8s.io/v1` Lease. No two clocks are ever compared: a candidate without
//! the Lease waits its whole duration, on its own clock, from the moment when it saw the last renewal; the holder
//! stops writing a quarter earlier, counted from the moment when it *sent* the last renewal that went through. Every
//! write to the Lease carries the version that it is based on.
//!
//! A process can be stopped between looking at the clock and writing, for any length of time. What it sends when it
//! wakes is refused by those who get it: agents, because a later leader's snapshots have larger sequences (see
//! [`Term`]); the apiserver, because a status is written with the version of the policy that it was made from.

mod campaign;
pub mod election;
mod lease;
mod term;
mod timing;

pub use campaign::{Campaign, Terms};
pub use lease::{LeaseName, SEQUENCES_BELOW};
pub use term::Term;
pub use timing::{InvalidTiming, Timing};
