//! A small app to protect, and a load generator.
//!
//! [`serve`] is an HTTP server that counts requests. [`load`] sends requests on a fixed schedule, so a slow server
//! cannot slow the load down. The demo and the e2e scenarios use both as black boxes. This crate must not depend on Weir,
//! so that it can test any limiter, and shares no mistake with the code that it measures.

mod answers;
mod clock;
mod grpc;
pub mod load;
mod request;
pub mod serve;
mod tally;
mod target;
mod websocket;

pub use self::{load::LoadArgs, request::RequestArgs, serve::ServeArgs};
