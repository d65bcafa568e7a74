//! The middleware that admits or refuses a request immediately: no request waits here.

mod future;
mod layer;
mod reject;
mod service;
#[cfg(test)]
mod tests;

pub use self::{future::LatencyFuture, layer::LatencyLayer, reject::Admit, service::LatencyService};
