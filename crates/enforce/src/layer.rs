//! Applies the rules in force to a service, with the layers of weir-tower. The rules can change at any time.
//!
//! A [`ThroughputLayer`] takes the turn of each request from the rules: a refused request never reaches the service,
//! and a waiting request reaches it when its turn comes. A [`DeadlineLayer`] around it cancels a request that exceeds
//! the deadline of its policy. [`Responses`] adds headers to a response and charges costs that depend on it.
//!
//! A request that passes immediately needs no allocation and no timer in these layers. A request waits only for its own
//! turn: no future in these layers depends on another future.

mod body;
mod respond;
mod turns;

use std::time::Duration;

use tower_layer::Layer;
use weir_tower::{Answers, DeadlineLayer, DeadlineService, OfRequests, ThroughputLayer, ThroughputService};

pub use self::{
    body::{BodyCosts, LimitedBody},
    respond::{Responses, Tunnel, refused, too_late},
    turns::{InQueue, Turns, WaitTicket},
};
use crate::gate::Gate;

/// A layer that applies the limits to a service. A request that passes two layers is charged twice.
#[derive(Clone, Debug)]
pub struct LimitLayer<G> {
    gate: G,
    server: &'static str,
}

/// A service behind the limits. This service is ready when the inner service is.
pub type Limited<S, G> = DeadlineService<ThroughputService<S, Turns<G>, Responses>, Answers<Responses>, OfRequests>;

impl<G> LimitLayer<G> {
    /// A layer whose limits this gate decides. `server` names this program in the responses to requests that exceed a
    /// deadline, or whose path is refused ([`AmbiguousPaths::Refuse`](crate::AmbiguousPaths::Refuse)).
    pub fn new(gate: G, server: &'static str) -> Self {
        Self { gate, server }
    }
}

impl<S, G: Gate + Clone> Layer<S> for LimitLayer<G> {
    type Service = Limited<S, G>;

    fn layer(&self, inner: S) -> Limited<S, G> {
        let Self { gate, server } = self.clone();
        let responses = Responses { clock: gate.options().clock, server };
        // The maximum wait is a property of each rule, so the layer has none.
        let limit = ThroughputLayer::with_outcome(Turns { gate, server }, Duration::MAX, responses);
        DeadlineLayer::of_requests(responses).layer(limit.layer(inner))
    }
}
