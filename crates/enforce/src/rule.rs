//! A rule in force, with its policy and its limits.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use weir_core::{KeyStats, KeySurvey, Quota, RuleLimiter, Terms, Time};
use weir_wire::{Mode, Per};

use super::{
    cost::Cost,
    counters::{Counters, Counts},
    fields::Advice,
    key::KeySpec,
    lower::{LoweredLimits, LoweredRule},
    refusal_text::RefusalText,
};
use crate::{histogram, matching::Matcher};

/// How many cells of each rule one scrape looks at.
const SURVEYED: usize = 4096;

/// A policy in force.
#[derive(Debug)]
pub struct Policy {
    /// The UID of the Kubernetes object. Counters belong to it.
    pub uid: String,
    /// The namespace of the Kubernetes object.
    pub namespace: String,
    /// The name of the Kubernetes object.
    pub name: String,
    /// Identifies the content of the policy.
    pub revision: String,
    pub(super) mode: Mode,
    pub(super) deadline: Option<Duration>,
    /// The policy's rules, in order.
    pub rules: Vec<Arc<Rule>>,
}

/// A rule in force.
#[derive(Debug)]
pub struct Rule {
    /// Unique within the policy.
    pub name: String,
    pub(super) matcher: Matcher,
    pub(super) per: Per,
    pub(super) counters: Arc<Counters>,
    /// `None` for a bypass.
    pub(super) limits: Option<Limits>,
}

/// What a rule charges.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) limiter: RuleLimiter,
    pub(super) key: KeySpec,
    pub(super) cost: Cost,
    /// How long a request may wait for its turn.
    pub(super) max_wait: Option<Duration>,
    pub(super) advice: Arc<Advice>,
    pub(super) refusal: RefusalText,
    /// The limits' names in order, for [`explain`](super::explain).
    pub(super) names: Vec<Box<str>>,
    /// The limits' quotas without overrides, for the metrics.
    quotas: Vec<Quota>,
}

impl Limits {
    /// Whether a request beyond the limits may wait.
    pub(super) fn is_patient(&self) -> bool {
        self.max_wait.is_some()
    }

    /// Whether there is exactly one limit.
    pub(super) fn is_single(&self) -> bool {
        self.names.len() == 1
    }
}

impl Policy {
    /// Whether requests have a deadline.
    pub fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    /// The mode, as a policy spells it.
    pub fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Enforce => "Enforce",
            Mode::Shadow => "Shadow",
            Mode::Disabled => "Disabled",
        }
    }
}

impl Rule {
    /// `before` is the rule whose limiter this one takes over, if its key is the same.
    pub(super) fn follow(
        counters: Arc<Counters>,
        before: Option<&Limits>,
        rule: LoweredRule,
        policy: &str,
        clock: &impl Fn() -> Time,
    ) -> Self {
        let LoweredRule { name, matcher, per, limits } = rule;
        let limits = limits.map(|lowered| {
            let LoweredLimits { key, terms, counted_by, cost, max_wait, refusal, advice } = lowered;
            let max_keys = counted_by.max_keys();
            let quotas = terms.quotas(None).to_vec();
            let names: Vec<Box<str>> = terms.limits().map(|(limit, _)| limit.into()).collect();
            let refusal = RefusalText::new(refusal, policy, &name, &names);
            let limiter = match before.filter(|before| before.key == key) {
                Some(before) => before.limiter.retune(clock, terms, max_keys),
                None => full(clock(), terms, max_keys),
            };
            let advice = Arc::new(advice);
            Limits { limiter, key, cost, max_wait, advice, refusal, names, quotas }
        });
        Self { name, matcher, per, counters, limits }
    }

    /// The rule's counters.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// How long admitted requests waited.
    pub fn waits(&self) -> histogram::Snapshot {
        self.counters.waits()
    }

    /// Whether requests may wait for their turn, now or before an earlier change.
    pub fn is_patient(&self) -> bool {
        self.limits.as_ref().is_some_and(Limits::is_patient) || self.counts().waited > 0
    }

    /// Whether requests that it matches are exempt from all limits.
    pub fn is_bypass(&self) -> bool {
        self.limits.is_none()
    }

    /// The limits by name, without overrides.
    pub fn limits(&self) -> impl Iterator<Item = (&str, Quota)> {
        let limits = self.limits.iter();
        limits.flat_map(|limits| limits.names.iter().map(AsRef::as_ref).zip(limits.quotas.iter().copied()))
    }

    /// How full its table of keys is. `None` without a key.
    pub fn keys(&self) -> Option<KeyStats> {
        self.limits.as_ref().and_then(|limits| limits.limiter.keys())
    }

    /// How near keys are to their limits. It looks at a bounded number of keys, so that a scrape stays short.
    pub fn survey(&self, now: Time) -> Option<KeySurvey> {
        self.limits.as_ref()?.limiter.survey(now, SURVEYED)
    }
}

fn full(now: Time, terms: Terms, max_keys: Option<NonZeroUsize>) -> RuleLimiter {
    match max_keys {
        Some(max_keys) => RuleLimiter::keyed(now, terms, max_keys),
        None => RuleLimiter::shared(now, terms),
    }
}
