//! Keeps the limiters of removed rules for a minute.
//!
//! A policy that is deleted and created again has another UID. Its rules would start with a full burst, so a user of
//! `kubectl replace --force` would get a fresh burst. To prevent that, a rule with the same namespace, policy name and
//! rule name takes over the removed limiter, with its counts. The statistics are not kept, because they belong to the
//! deleted policy.
//!
//! Memory is bounded: the latest [`MOST`] rules, with [`MOST_KEYS`] keys together, and none for longer than [`KEPT`].

use std::{collections::VecDeque, sync::Arc, time::Duration};

use weir_core::Time;

use super::{
    lower::full_name,
    rule::{Policy, Rule},
};

/// How long a limiter is kept after its rule was removed.
const KEPT: Duration = Duration::from_secs(60);

/// The most limiters to keep.
const MOST: usize = 256;

/// The most keys that their tables together may hold: as many as one rule may ask for, or 16 rules with the default.
const MOST_KEYS: u64 = 1 << 20;

/// The latest removed rules, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Removed {
    rules: VecDeque<Gone>,
}

#[derive(Clone, Debug)]
struct Gone {
    policy: Arc<str>,
    rule: Arc<Rule>,
    until: Time,
}

impl Removed {
    /// Adds a removed rule of a policy. A rule without limits has nothing to keep.
    pub(super) fn add(&mut self, policy: &Policy, rule: &Arc<Rule>, now: Time) {
        if rule.limits.is_none() {
            return;
        }
        let policy = full_name(&policy.namespace, &policy.name).into();
        self.rules.push_back(Gone { policy, rule: Arc::clone(rule), until: now.saturating_add(KEPT) });
    }

    /// Drops the rules that were removed long enough ago.
    pub(super) fn expire(&mut self, now: Time) {
        self.rules.retain(|gone| gone.until > now);
    }

    /// Drops the oldest rules beyond the bounds.
    pub(super) fn trim(&mut self) {
        let room = |gone: &Gone| gone.rule.keys().map_or(0, |keys| keys.capacity);
        let mut keys: u64 = self.rules.iter().map(room).sum();
        while self.rules.len() > MOST || keys > MOST_KEYS {
            let Some(oldest) = self.rules.pop_front() else { return };
            keys -= room(&oldest);
        }
    }

    /// Takes the latest rule with this name, of a policy with this namespace and name. A second call does not find it.
    pub(super) fn take(&mut self, policy: &str, rule: &str) -> Option<Arc<Rule>> {
        let place = self.rules.iter().rposition(|gone| *gone.policy == *policy && gone.rule.name == rule)?;
        self.rules.remove(place).map(|gone| gone.rule)
    }

    /// How many rules are kept, and until when the first of them is.
    pub(super) fn held(&self) -> (usize, Option<Time>) {
        (self.rules.len(), self.rules.front().map(|gone| gone.until))
    }
}
