//! The middleware that bounds how long a request may take in total.

mod deadlines;
mod future;
mod layer;
mod service;
#[cfg(test)]
mod tests;

pub use self::{deadlines::OfRequests, future::DeadlineFuture, layer::DeadlineLayer, service::DeadlineService};
