//! The limiters of rules that are gone, for a minute.
//!
//! A policy that is deleted and made again has another UID, and its rules would start with all of their burst free: so
//! `kubectl replace --force` would hand out a fresh burst. A rule of the same namespace, policy name and rule name takes up
//! the limiter instead. What it decided is not kept: that belongs to the policy that is gone.
//!
//! Memory is bounded: the latest [`MOST`] rules, with [`MOST_KEYS`] keys together, and none for longer than [`KEPT`].

use std::{collections::VecDeque, sync::Arc, time::Duration};

use weir_core::Time;

use super::in_force::{Policy, Rule};

/// How long a limiter is kept after its rule has gone.
const KEPT: Duration = Duration::from_secs(60);

/// How many are.
const MOST: usize = 256;

/// For how many keys their tables have room: as many as one rule may ask for, and 16 do if they do not say.
const MOST_KEYS: u64 = 1 << 20;

/// The latest rules that are gone, the oldest first.
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
    /// The rule of a policy is gone. One without limits leaves nothing to keep.
    pub(super) fn add(&mut self, policy: &Policy, rule: &Arc<Rule>, now: Time) {
        if rule.is_bypass() {
            return;
        }
        let policy = full_name(&policy.namespace, &policy.name).into();
        self.rules.push_back(Gone { policy, rule: Arc::clone(rule), until: now.saturating_add(KEPT) });
    }

    /// Forgets what has been gone for long enough.
    pub(super) fn expire(&mut self, now: Time) {
        self.rules.retain(|gone| gone.until > now);
    }

    /// Forgets the oldest where there are too many.
    pub(super) fn trim(&mut self) {
        let room = |gone: &Gone| gone.rule.keys().map_or(0, |keys| keys.capacity);
        let mut keys: u64 = self.rules.iter().map(room).sum();
        while self.rules.len() > MOST || keys > MOST_KEYS {
            let Some(oldest) = self.rules.pop_front() else { return };
            keys -= room(&oldest);
        }
    }

    /// The latest rule of this name, of a policy of this namespace and name. It is not there for another one.
    pub(super) fn take(&mut self, policy: &str, rule: &str) -> Option<Arc<Rule>> {
        let place = self.rules.iter().rposition(|gone| *gone.policy == *policy && gone.rule.name == rule)?;
        self.rules.remove(place).map(|gone| gone.rule)
    }

    /// How many there are, and until when the first of them is kept.
    pub(super) fn held(&self) -> (usize, Option<Time>) {
        (self.rules.len(), self.rules.front().map(|gone| gone.until))
    }
}

/// Neither part has a slash.
pub(super) fn full_name(namespace: &str, policy: &str) -> String {
    format!("{namespace}/{policy}")
}
