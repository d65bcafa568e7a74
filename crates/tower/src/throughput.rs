//! The middleware that lets a request wait if its turn comes soon enough, and otherwise refuses the request
//! immediately.

mod future;
mod layer;
mod reserve;
mod service;
#[cfg(test)]
mod tests;

pub use self::{
    future::ThroughputFuture,
    layer::ThroughputLayer,
    reserve::{QueueTicket, Reserve, Turn},
    service::ThroughputService,
};
