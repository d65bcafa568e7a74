//! The middleware that bounds how long a request may take, whatever it spends the time with.

mod future;
mod layer;
mod reject;
mod service;
#[cfg(test)]
mod tests;

pub use future::DeadlineFuture;
pub use layer::DeadlineLayer;
pub use reject::DeadlineExceeded;
pub use service::DeadlineService;
