//! One question to the store.

use std::{sync::Arc, time::Duration};

use weir_seats::{BanChange, BanQuestion, Key, Level, Take, terms::StoreTerms};

use super::entry::Waiter;

/// A question, and the requests that wait for its answer.
pub(super) struct Question {
    pub(super) batch: Vec<Waiter>,
    pub(super) owned: Owned,
}

/// The content of a question, with owned values.
#[derive(Clone)]
pub(super) struct Owned {
    pub(super) key: Key,
    pub(super) terms: Arc<StoreTerms>,
    pub(super) requests: u32,
    pub(super) cost: u32,
    pub(super) patience: Duration,
    pub(super) prefetch: u32,
    pub(super) reach: Duration,
    pub(super) owed: u32,
    pub(super) credit: u32,
    /// The part of `owed` that this program's share admitted while the store was lost, and all units that it admitted,
    /// without those that did not fit into the question.
    pub(super) share: (u32, u64),
    pub(super) seen: Option<Level>,
    /// The number of failed questions (`StoreClient::failures`) when `seen` was chosen.
    pub(super) failures: u64,
    pub(super) ban: Option<BanQuestion>,
    pub(super) asked_at: Duration,
}

impl Owned {
    /// The owed units, without those that the program's share still counts (`Share`).
    pub(super) fn explicit(&self) -> u32 {
        self.owed.saturating_sub(self.share.0)
    }

    /// The beginning of the ban that the question starts.
    pub(super) fn ban_started(&self) -> Option<Duration> {
        let BanChange::Start { ago } = self.ban?.change else { return None };
        Some(self.asked_at.saturating_sub(ago))
    }

    pub(super) fn take(&self) -> Take<'_> {
        Take {
            requests: self.requests,
            cost: self.cost,
            patience: self.patience,
            prefetch: self.prefetch,
            guard: self.reach,
            lookahead: self.reach,
            owed: self.owed,
            credit: self.credit,
            seen: self.seen.as_ref(),
            ban: self.ban,
            ..Take::new(&self.terms)
        }
    }
}
