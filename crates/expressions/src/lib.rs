//! The expressions that people write in a rule: regular expressions for paths, networks, predicates, and values of headers.
//!
//! The operator parses them to report faults to the policy's author; agents run them. Both use this crate, so agents
//! take every expression that shows as accepted: there is one set of bounds, one list of names and functions, and one
//! text for each fault. The author of an expression is not trusted, so parsing and running it are bounded.
//!
//! This crate does not depend on policies or requests.

mod language;
mod network;
mod path_regex;
mod predicate;
mod template;
mod weight;

pub use self::{
    language::language,
    network::{InvalidNetwork, Network, network},
    path_regex::{InvalidRegex, path_regex},
    predicate::{InvalidPredicate, Predicate, predicate},
    template::{InvalidTemplate, Piece, Placeholder, template},
    weight::Size,
};
