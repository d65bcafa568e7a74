//! The middleware that lets a request wait for its turn if that comes soon enough, and refuses it at once if not. No
//! request waits here only to be refused.

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
