//! A small app to protect, and the load to protect it from.
//!
//! [`serve`] is an HTTP server that counts what reaches it. [`load`] sends on a fixed schedule, whatever the answers
//! are, so that a slow server cannot slow the load down; [`probe`] sends an exact number of requests. Demo and e2e
//! scenarios use all three as black boxes. Nothing in here may know anything of Weir: it must be just as able to test
//! any other limiter, and it must never share a mistake with the code that it measures.

pub mod load;
pub mod probe;
mod request;
pub mod serve;
mod tally;
mod target;

pub use load::LoadArgs;
pub use probe::ProbeArgs;
pub use request::RequestArgs;
pub use serve::ServeArgs;
