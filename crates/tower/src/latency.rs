//! The middleware that decides at once: a request is admitted or refused, and never waits here.

mod future;
mod layer;
mod reject;
mod service;
#[cfg(test)]
mod tests;

pub use future::LatencyFuture;
pub use layer::LatencyLayer;
pub use reject::Admit;
pub use service::LatencyService;
