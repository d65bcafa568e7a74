//! The rules in force, and how one set of them follows another.
//!
//! A rule is known by its policy's UID and its own name. Whoever follows a rule of the same UID and name takes over its
//! counters and its limiter, which is retuned in place: a request that still holds the rules from before the change
//! charges the same words as one that sees the new ones. A change of mode, match, refusal or order therefore touches no
//! counter. A limiter starts afresh in three cases, each of which changes what it counts: the rule was not there (or
//! was a bypass), it got or lost its `key`, or its `key` tells requests apart by something else.

use std::{collections::HashMap, num::NonZeroUsize, sync::Arc};

use http::StatusCode;
use weir_core::{KeyStats, RuleLimiter, Terms, Time};
use weir_wire::{Mode, Snapshot};

use super::{
    counters::{Counters, Counts},
    fields::Advice,
    key::KeySpec,
    lower::{Lowered, LoweredLimits, LoweredRule},
};
use crate::matching::Matcher;

/// What is enforced at one moment, ready to decide. Replaced as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct RulesInForce {
    /// None before the first snapshot.
    snapshot: Option<(Arc<Snapshot>, Time)>,
    policies: Vec<Arc<Policy>>,
    /// Bypasses of all policies that enforce.
    pub(super) bypasses: Vec<Arc<Rule>>,
    /// Rules with limits, of all policies that enforce.
    pub(super) enforced: Vec<Arc<Rule>>,
    /// Policies in shadow mode.
    pub(super) shadows: Vec<Arc<Policy>>,
}

/// A policy as it is enforced.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) revision: String,
    pub(crate) rules: Vec<Arc<Rule>>,
}

/// A rule as it is enforced.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: String,
    pub(super) matcher: Matcher,
    pub(super) counters: Arc<Counters>,
    /// None: bypass.
    pub(super) limits: Option<Limits>,
}

/// What a rule charges.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) limiter: RuleLimiter,
    pub(super) key: KeySpec,
    pub(super) status: StatusCode,
    pub(super) advice: Advice,
    /// A refusal's body up to the number of seconds, for each limit.
    refusals: Vec<String>,
}

impl Limits {
    /// The body of a refusal. As in [`Advice::policy`], the place of the limit may be that of a later snapshot.
    pub(super) fn refusal(&self, limit: usize, retry_after_seconds: u64) -> String {
        let start = self.refusals.get(limit).unwrap_or(&self.refusals[0]);
        format!("{start}{retry_after_seconds}}}\n")
    }
}

impl Rule {
    pub(crate) fn counts(&self) -> Counts {
        self.counters.read()
    }

    pub(crate) fn is_bypass(&self) -> bool {
        self.limits.is_none()
    }

    pub(crate) fn keys(&self) -> Option<KeyStats> {
        self.limits.as_ref().and_then(|limits| limits.limiter.keys())
    }
}

impl RulesInForce {
    /// The snapshot in force and since when its revision is.
    pub(crate) fn snapshot(&self) -> Option<(&Snapshot, Time)> {
        self.snapshot.as_ref().map(|(snapshot, since)| (&**snapshot, *since))
    }

    pub(crate) fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// The same rules under a later sequence.
    pub(crate) fn moved_on(&self, snapshot: Snapshot, now: Time) -> Self {
        let since = self.snapshot.as_ref().map_or(now, |(_, since)| *since);
        Self { snapshot: Some((Arc::new(snapshot), since)), ..self.clone() }
    }

    /// The rules that follow these.
    pub(crate) fn succeed(&self, snapshot: Snapshot, lowered: Lowered, clock: impl Fn() -> Time) -> Self {
        let before: HashMap<(&str, &str), &Rule> = self
            .policies
            .iter()
            .flat_map(|policy| policy.rules.iter().map(|rule| ((policy.uid.as_str(), rule.name.as_str()), &**rule)))
            .collect();
        let mut next = Self { snapshot: Some((Arc::new(snapshot), clock())), ..Self::default() };
        for policy in lowered.policies {
            let full_name = format!("{}/{}", policy.namespace, policy.name);
            let rules: Vec<Arc<Rule>> = policy
                .rules
                .into_iter()
                .map(|rule| {
                    let follows = before.get(&(policy.uid.as_str(), rule.name.as_str())).copied();
                    Arc::new(Rule::follow(follows, rule, &full_name, &clock))
                })
                .collect();
            let (limiting, bypassing): (Vec<_>, Vec<_>) = rules.iter().cloned().partition(|rule| !rule.is_bypass());
            let (uid, namespace, name, revision) = (policy.uid, policy.namespace, policy.name, policy.revision);
            let placed = Arc::new(Policy { uid, namespace, name, revision, rules });
            match policy.mode {
                Mode::Enforce => {
                    next.enforced.extend(limiting);
                    next.bypasses.extend(bypassing);
                }
                Mode::Shadow => next.shadows.push(Arc::clone(&placed)),
                Mode::Disabled => {}
            }
            next.policies.push(placed);
        }
        next
    }
}

impl Rule {
    fn follow(before: Option<&Self>, rule: LoweredRule, policy: &str, clock: &impl Fn() -> Time) -> Self {
        let counters = before.map(|before| Arc::clone(&before.counters)).unwrap_or_default();
        let limits = rule.limits.map(|lowered| {
            let LoweredLimits { key, terms, max_keys, status, advice } = lowered;
            let refusals = terms.limits().map(|(limit, _)| refusal(policy, &rule.name, limit)).collect();
            let same_key = before.and_then(|before| before.limits.as_ref()).filter(|before| before.key == key);
            let limiter = match same_key {
                Some(before) => before.limiter.retune(clock, terms, max_keys),
                None => fresh(clock(), terms, max_keys),
            };
            Limits { limiter, key, status, advice, refusals }
        });
        Self { name: rule.name, matcher: rule.matcher, counters, limits }
    }
}

fn fresh(now: Time, terms: Terms, max_keys: Option<NonZeroUsize>) -> RuleLimiter {
    match max_keys {
        Some(max_keys) => RuleLimiter::keyed(now, terms, max_keys),
        None => RuleLimiter::shared(now, terms),
    }
}

/// Names are DNS labels and need no escapes.
fn refusal(policy: &str, rule: &str, limit: &str) -> String {
    format!(r#"{{"error":"rate limited","policy":"{policy}","rule":"{rule}","limit":"{limit}","retryAfterSeconds":"#)
}
