//! The middleware that decides at once: a request is admitted or refused, and never waits here.

mod future;
mod layer;
mod reject;
mod service;
#[cfg(test)]
mod tests;

pub use self::{future::LatencyFuture, layer::LatencyLayer, reject::Admit, service::LatencyService};
