//! The middleware that limits the total time of a request.

mod deadlines;
mod future;
mod layer;
mod service;
#[cfg(test)]
mod tests;

pub use self::{
    deadlines::{Deadlines, OfRequests},
    future::DeadlineFuture,
    layer::DeadlineLayer,
    service::DeadlineService,
};
