//! From a snapshot to decisions.
//!
//! [`lower()`] turns wire data into parsed rules or into every fault it has; [`RulesInForce::succeed`] gives those rules
//! the limiters and counters of the rules that they follow; a [`Gate`] asks them for each request, and [`LimitLayer`]
//! does what they say: refuse, wait, forward, count what the response tells. A decision takes no lock of its own,
//! formats no label, and waits for nothing but the request's own turn.

mod body;
mod charge;
mod client_ip;
mod cost;
mod counters;
mod decide;
mod explain;
mod fields;
mod gate;
mod in_force;
mod jwt;
mod key;
mod later;
mod layer;
mod log;
mod lower;
mod messages;
mod refusal;
mod removed;
mod respond;
mod rule_set;
#[cfg(test)]
mod tests;
mod wait;

pub(crate) use self::{
    body::LimitedBody,
    decide::Refusal,
    fields::Fields,
    gate::{Gate, Gates},
    in_force::{Policy, Rule, RulesInForce},
    jwt::Jwks,
    layer::LimitLayer,
    lower::lower,
    messages::{MessageRefused, Messages},
    respond::{Cause, Refused},
};
