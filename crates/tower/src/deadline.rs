//! The middleware that bounds how long a request may take in total.

mod future;
mod layer;
mod service;
#[cfg(test)]
mod tests;

pub use future::DeadlineFuture;
pub use layer::DeadlineLayer;
pub use service::DeadlineService;
