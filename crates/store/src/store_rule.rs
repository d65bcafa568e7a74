//! What the client of a store and the common bound of keys need of a rule.

use std::sync::Arc;

use weir_seats::{BanQuestion, Key, Level, StoreTerms, Take};
use weir_wire::Question;

/// A rule that uses a store, with a table of keys.
pub(crate) trait StoreRule: Send + Sync {
    /// Does periodic work. The client's task calls it several times per second.
    fn sweep(self: Arc<Self>);

    /// Gives all seats back to the store that no request has used.
    fn give_all_back(&self);

    /// Adds the levels that a new operator must know, at most `most` in all. Returns false if some are missing.
    fn levels(&self, most: usize, levels: &mut Vec<KeyReport>) -> bool;

    /// Ends the shares of this program, and adds the units that they used. Drops seats and refusals of an earlier operator.
    fn end_shares(&self, used: &mut Vec<KeyReport>);

    /// The number of keys.
    fn keys(&self) -> usize;

    /// The rule's own bound of keys.
    fn most_keys(&self) -> usize;

    /// Forgets a key that was not used for long. Returns false if none can be forgotten. The caller must hold no lock.
    fn make_room(&self) -> bool;
}

/// What a new operator must know about a key.
pub(crate) struct KeyReport {
    pub(crate) key: Key,
    pub(crate) terms: Arc<StoreTerms>,
    pub(crate) level: Option<Level>,
    /// The units that the program used on its own.
    pub(crate) owed: u32,
    pub(crate) ban: Option<BanQuestion>,
}

impl KeyReport {
    pub(crate) fn question(&self) -> Option<Question> {
        let Self { key, terms, level, owed, ban } = self;
        let question = Take { requests: 0, seen: level.as_ref(), owed: *owed, ban: *ban, ..Take::new(terms) };
        Some(question.encode()?.message(0, key))
    }
}
