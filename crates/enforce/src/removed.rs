//! Keeps the limiters of removed rules for a minute.
//!
//! A policy that is deleted and created again has another UID, so its rules would start with a full burst, for example
//! after `kubectl replace --force`. To prevent that, a rule with the same namespace, policy name and rule name takes
//! over the removed limiter, with its counts. The statistics are not kept, because they belong to the deleted policy.
//!
//! Memory is bounded: only the latest [`MOST`] rules are kept, with at most [`MOST_KEYS`] keys in total, and no rule is
//! kept for longer than [`KEPT`].

use std::{collections::VecDeque, sync::Arc, time::Duration};

use weir_core::Time;

use super::{
    lower::full_name,
    rule::{Policy, Rule},
};

/// The time for which a limiter is kept after its rule was removed.
const KEPT: Duration = Duration::from_secs(60);

/// The maximum number of limiters to keep.
const MOST: usize = 256;

/// The maximum capacity of all kept tables in keys: enough for one rule with the maximum of `maxKeys`, or for 16 rules
/// with the default.
const MOST_KEYS: u64 = 1 << 20;

/// The latest removed rules, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Removed {
    rules: VecDeque<RemovedRule>,
}

#[derive(Clone, Debug)]
struct RemovedRule {
    policy: Arc<str>,
    rule: Arc<Rule>,
    until: Time,
}

impl Removed {
    /// Adds a removed rule of a policy, unless the rule has no limits.
    pub(super) fn add(&mut self, policy: &Policy, rule: &Arc<Rule>, now: Time) {
        if rule.is_exception() {
            return;
        }
        if let Some(shared) = rule.rates().and_then(|limits| limits.shared.as_ref()) {
            shared.limiter.forget_refusal();
        }
        let policy = full_name(&policy.namespace, &policy.name).into();
        self.rules.push_back(RemovedRule { policy, rule: Arc::clone(rule), until: now.saturating_add(KEPT) });
    }

    /// Drops the rules that were removed more than [`KEPT`] ago.
    pub(super) fn expire(&mut self, now: Time) {
        self.rules.retain(|gone| gone.until > now);
    }

    /// Drops the oldest rules beyond the bounds.
    pub(super) fn trim(&mut self) {
        let room = |gone: &RemovedRule| gone.rule.keys().map_or(0, |keys| keys.capacity);
        let mut keys: u64 = self.rules.iter().map(room).sum();
        while self.rules.len() > MOST || keys > MOST_KEYS {
            let Some(oldest) = self.rules.pop_front() else { return };
            keys -= room(&oldest);
        }
    }

    /// Takes out the latest rule with this name of a policy with this namespace and name.
    pub(super) fn take(&mut self, policy: &str, rule: &str) -> Option<Arc<Rule>> {
        let place = self.rules.iter().rposition(|gone| *gone.policy == *policy && gone.rule.name == rule)?;
        self.rules.remove(place).map(|gone| gone.rule)
    }

    /// Returns the number of kept rules, and the time at which the first of them is dropped.
    pub(super) fn held(&self) -> (usize, Option<Time>) {
        (self.rules.len(), self.rules.front().map(|gone| gone.until))
    }
}
