//! Leader election: only the leader pushes to agents and writes statuses and events.
//!
//! ```text
//! Lease ──watch──► campaign ──► election (pure) ──► Term ──► engine, links, writer
//!    ▲                │
//!    └──claim, renew──┘
//! ```
//!
//! The candidates compete for one `coordination.k8s.io/v1` Lease. Clocks of two machines are never compared. A
//! candidate waits for the whole lease duration, on its own clock, after it observed the last renewal. The holder stops
//! writing a quarter earlier, counted from the time at which it *sent* its last successful renewal. Every write to the
//! Lease names the version that it is based on.
//!
//! A process can be suspended for any time between reading the clock and writing. The receivers refuse such late
//! writes. Agents refuse them because a later leader's snapshots have larger sequences (see [`Term`]). The apiserver
//! refuses them because a status write names the policy's version that it is based on.

mod campaign;
pub mod election;
mod lease;
mod term;
mod timing;

pub use self::{
    campaign::{Campaign, TermReceiver},
    election::Restored,
    lease::{LeaseName, SEQUENCES_BELOW},
    term::Term,
    timing::{InvalidLeaseTiming, LeaseTiming},
};
