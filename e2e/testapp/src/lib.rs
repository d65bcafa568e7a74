//! A small app to protect, and a load generator.
//!
//! [`serve`] is an HTTP server that counts requests. [`load`] sends on a fixed schedule, whatever the answers are, so
//! that a slow server cannot slow the load down. [`probe`] sends an exact number of requests. The demo and the e2e
//! scenarios use all three as black boxes. This crate must not depend on Weir: it must be able to test any other
//! limiter, and must never share a mistake with the code that it measures.

mod clock;
pub mod load;
pub mod probe;
mod request;
pub mod serve;
mod tally;
mod target;

pub use self::{load::LoadArgs, probe::ProbeArgs, request::RequestArgs, serve::ServeArgs};
