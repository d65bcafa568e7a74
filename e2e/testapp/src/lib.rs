//! A small app to protect, and a load generator.
//!
//! [`serve`] is an HTTP server that counts requests. [`load`] sends requests on a fixed schedule, so a slow server
//! cannot slow the load down. [`probe`] sends an exact number of requests. The demo and the e2e scenarios use all three
//! as black boxes. This crate must not depend on Weir, so that it can test any limiter, and shares no mistake with the
//! code that it measures.

mod clock;
mod grpc;
pub mod load;
pub mod probe;
mod request;
pub mod serve;
mod tally;
mod target;
mod websocket;

pub use self::{load::LoadArgs, probe::ProbeArgs, request::RequestArgs, serve::ServeArgs};
