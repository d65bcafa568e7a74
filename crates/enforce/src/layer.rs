//! Applies the rules in force to a service, by the layers of weir-tower. The rules may change at any moment.
//!
//! A [`ThroughputLayer`] asks the rules for the turn of each request: a refused request never reaches the service, and a
//! waiting one reaches it when its turn comes. A [`DeadlineLayer`] around it cancels a request that exceeds its policy's
//! deadline. What remains to do with a response is done when the service has answered ([`Responses`]).
//!
//! A request that passes at once costs no allocation and no timer here. A request must wait for its own turn only, and
//! no future here depends on another.

mod body;
mod respond;
mod turns;

use std::time::Duration;

use tower_layer::Layer;
use weir_tower::{Answers, DeadlineLayer, DeadlineService, OfRequests, ThroughputLayer, ThroughputService};

use crate::gate::Gate;

pub use self::{
    body::LimitedBody,
    respond::{Responses, refused, too_late},
    turns::{Position, Turns},
};

/// Puts the limits around a service.
#[derive(Clone, Debug)]
pub struct LimitLayer<G> {
    gate: G,
    server: &'static str,
}

/// A service behind the limits. It is ready when the inner service is.
pub type Limited<S, G> = DeadlineService<ThroughputService<S, Turns<G>, Responses>, Answers<Responses>, OfRequests>;

impl<G> LimitLayer<G> {
    /// Limits that this gate decides. `server` names the sender of the response when a deadline has passed.
    pub fn new(gate: G, server: &'static str) -> Self {
        Self { gate, server }
    }
}

impl<S, G: Gate + Clone> Layer<S> for LimitLayer<G> {
    type Service = Limited<S, G>;

    fn layer(&self, inner: S) -> Limited<S, G> {
        let responses = Responses { clock: self.gate.options().clock, server: self.server };
        // Each rule says how long its requests may wait.
        let limit = ThroughputLayer::with_outcome(Turns(self.gate.clone()), Duration::MAX, responses);
        DeadlineLayer::of_requests(responses).layer(limit.layer(inner))
    }
}
