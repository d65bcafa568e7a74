//! Decides which rules match a request.
//!
//! A [`Matcher`] is a rule's `match` list, parsed once. An [`Index`] finds the matchers that can match. Both read a
//! [`RequestView`], which computes costly values (the normalised path) at most once for all the rules of a request.
//! Matching does not allocate for an ordinary request, and never changes a request: rules compare a normal form, and
//! the app gets the original.

mod client_ip;
mod conditions;
mod facts;
#[cfg(test)]
mod fuzz;
mod glob;
mod headers;
mod host;
mod index;
#[cfg(test)]
mod index_tests;
mod path;
mod predicate;
mod query;
mod request;
mod trie;

#[cfg(test)]
pub(crate) use self::path::respell;
pub use self::{
    client_ip::X_FORWARDED_FOR,
    headers::{FieldLine, Headers},
    path::{AmbiguousPaths, is_ambiguous},
    request::{RequestView, over_budget},
};
pub(crate) use self::{
    conditions::{Conditions, EntryCondition, FieldCondition, ValueCondition},
    glob::Glob,
    host::HostPattern,
    index::Index,
    predicate::Predicate,
};

/// A rule's `match` list. A request matches if any entry matches, or if there are no entries.
#[derive(Debug)]
pub(crate) struct Matcher {
    /// At least one entry.
    entries: Vec<Conditions>,
}

impl Matcher {
    pub(crate) fn new(mut entries: Vec<Conditions>) -> Self {
        if entries.is_empty() {
            entries.push(Conditions::default());
        }
        Self { entries }
    }

    /// Whether the entry with this index matches.
    pub(crate) fn entry_matches(&self, entry: usize, request: &RequestView<'_>) -> bool {
        self.entries[entry].are_met_by(request)
    }

    /// Whether any entry matches.
    pub(crate) fn matches(&self, request: &RequestView<'_>) -> bool {
        self.entries.iter().any(|entry| entry.are_met_by(request))
    }

    /// Whether this matcher matches every request.
    pub(crate) fn matches_everything(&self) -> bool {
        self.entries.iter().any(Conditions::is_none)
    }

    fn entries(&self) -> &[Conditions] {
        &self.entries
    }
}
