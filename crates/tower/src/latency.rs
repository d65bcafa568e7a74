//! The middleware that decides at once: a request goes on or is answered, and none ever waits here.

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
