//! The expressions that people write in a rule: regular expressions for paths, and predicates.
//!
//! The operator parses them to tell a policy's author what is wrong, agents to run them. Both do it here, so an expression
//! that shows as accepted is one that agents take: there is one set of bounds, one list of names and functions, and one
//! text for each fault. Whoever wrote an expression is not trusted: what it may take to parse and to run is bounded.
//!
//! This crate knows neither policies nor requests.

mod language;
mod path_regex;
mod predicate;
mod weight;

pub use language::language;
pub use path_regex::{InvalidRegex, path_regex};
pub use predicate::{InvalidPredicate, Predicate, predicate};
pub use weight::Size;
