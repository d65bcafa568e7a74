//! The expressions that users write in a rule: regular expressions for paths, networks, predicates, and values of
//! headers. It also contains the normal form of the keys that overrides name.
//!
//! The operator parses expressions to report faults to the policy's author, and agents evaluate them. Both use this
//! crate, with the same bounds, names, functions and messages, so agents accept every expression that the operator
//! accepts. The author of an expression is not trusted, so the costs of parsing and evaluation are bounded.
//!
//! This crate does not depend on the types of policies and requests.

mod cost;
mod language;
mod named;
mod network;
mod path_regex;
mod pattern;
mod predicate;
mod signs;
mod template;
mod weight;

pub use self::{
    cost::BUDGET,
    language::language,
    named::{InvalidValue, NamedPart, cookie_value},
    network::{InvalidNetwork, Network, network},
    path_regex::{InvalidRegex, PathRegex, PathRegexSet, path_regex},
    predicate::{InvalidPredicate, Predicate, predicate},
    template::{InvalidTemplate, Piece, Placeholder, body_template, template},
    weight::Size,
};

/// The maximum memory of all regular expressions and predicates of a snapshot, in bytes. The operator omits policies
/// that do not fit, and agents reject a larger snapshot.
pub const MAX_EXPRESSION_BYTES: u64 = 16 * 1024 * 1024;
