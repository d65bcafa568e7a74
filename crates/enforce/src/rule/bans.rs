//! The bans of a rule, in this program and in the store of a rule of scope Shared or Fleet.
//!
//! Each program counts the refusals that it saw. The first ban of a key is reported to the store, and other programs
//! learn of it with their next question about the key. A program that knows a ban refuses without a question. But if the
//! last answer of the store is older than a second, the request waits for the store, because another program can have
//! lifted the ban.

use std::{sync::Arc, time::Duration};

use weir_core::Time;
use weir_store::{SharedLimiter, StoreError};

use super::{Limits, Rule};
use crate::ban::Ban;

/// A key of a rule in its store.
pub(crate) struct KeyInStore {
    limiter: Arc<SharedLimiter>,
    hash: u128,
}

impl KeyInStore {
    /// The name of the store.
    pub(crate) fn store(&self) -> String {
        self.limiter.client().name().to_owned()
    }

    /// Returns the key to its full credit in the store.
    pub(crate) async fn reset(self) -> Result<(), StoreError> {
        self.limiter.reset(self.hash).await
    }

    /// Lifts the ban in the store. Returns true if the key was banned there.
    pub(crate) async fn lift(self) -> Result<bool, StoreError> {
        self.limiter.lift_ban(self.hash).await
    }
}

impl Limits {
    /// Returns the rest of the key's ban. `None` if the rule has not banned the key, and if the request must ask the store
    /// whether the ban is still in force.
    pub(crate) fn ban_rest(&self, key: &[u8], now: Time) -> Option<Duration> {
        let (rest, store) = self.ban_of(key, now)?;
        let must_ask = store.is_some_and(|store| store.limiter.must_ask_about_ban(store.hash));
        (!must_ask).then_some(rest)
    }

    /// Returns the rest of the key's ban for callers that do not wait for the store: the last answer counts, and a new
    /// one arrives later.
    pub(crate) fn known_ban(&self, key: &[u8], now: Time) -> Option<Duration> {
        self.ban_of(key, now).map(|(rest, _)| rest)
    }

    fn ban_of(&self, key: &[u8], now: Time) -> Option<(Duration, Option<KeyInStore>)> {
        let ban = self.ban.as_ref().filter(|ban| ban.is_active())?;
        let rest = ban.rest(key, now)?;
        let Some(store) = self.key_in_store(key) else { return Some((rest, None)) };
        if store.limiter.is_lifted(store.hash, ban.length().saturating_sub(rest)) {
            ban.lift_one(key);
            return None;
        }
        Some((rest, Some(store)))
    }

    /// Counts a refusal for the ban of the rule that has these limits. Returns the rest of the ban if the key is banned
    /// now.
    pub(crate) fn count_for_ban(&self, key: &[u8], at: Time, rule: &Rule) -> Option<Duration> {
        let banned = self.ban.as_ref()?.refused(key, at, &rule.statistics)?;
        if !banned.begins {
            rule.statistics.count_banned(rule.mode);
        } else if let Some(KeyInStore { limiter, hash }) = self.key_in_store(key) {
            limiter.start_ban(hash);
        }
        Some(banned.rest)
    }

    /// Records a ban that the store reported.
    pub(crate) fn learn_ban(&self, key: &[u8], rest: Duration, at: Time) {
        if let Some(ban) = &self.ban {
            ban.learn(key, rest, at);
        }
    }

    fn key_in_store(&self, key: &[u8]) -> Option<KeyInStore> {
        let shared = self.shared.as_ref()?;
        Some(KeyInStore { limiter: Arc::clone(&shared.limiter), hash: self.key.hash(key) })
    }
}

impl Rule {
    pub(crate) fn ban(&self) -> Option<&Ban> {
        self.rates()?.ban.as_ref()
    }

    /// Returns the number of banned keys, with a bound on the work: of more than 16,384 keys, some bans count that have
    /// ended. `None` if the rule has no ban.
    pub fn banned_keys(&self, now: Time) -> Option<u64> {
        self.ban().map(|ban| ban.count(now))
    }

    /// Whether a store has the bans of this rule, too.
    pub(crate) fn has_bans_in_store(&self) -> bool {
        self.rates().is_some_and(|limits| limits.ban.is_some() && limits.shared.is_some())
    }

    /// A key in the store of the rule. `None` for a rule of scope Pod.
    pub(crate) fn key_in_store(&self, key: &[u8]) -> Option<KeyInStore> {
        self.rates()?.key_in_store(key)
    }
}
