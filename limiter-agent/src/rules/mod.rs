//! From a snapshot to decisions.
//!
//! [`lower()`] turns wire data into parsed rules or into every fault it has; [`RulesInForce::succeed`] gives those rules
//! the limiters and counters of the rules that they follow; [`Gate`] asks them for each request. A decision takes no
//! lock of its own, formats no label and waits for nobody.

mod client_ip;
mod counters;
mod decide;
mod fields;
mod gate;
mod in_force;
mod key;
mod lower;

pub(crate) use self::{
    gate::{Gate, Respond},
    in_force::{Policy, Rule, RulesInForce},
    lower::lower,
};
