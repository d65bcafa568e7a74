//! The rules in force, and how one set of them follows another.
//!
//! A rule is known by its policy's UID and its own name. A rule that follows one of the same UID and name takes over its
//! counters and its limiter, which is retuned in place: a request that still holds the rules from before the change
//! charges the same words as one that sees the new ones. A change of mode, match, refusal or order therefore touches no
//! counter. A limiter starts full in three cases, each of which changes what it counts: the rule was not there (or
//! was a bypass), it got or lost its `key`, or its `key` tells requests apart by something else. A rule whose policy was
//! made again is there if it went less than a minute ago; see `removed`.

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroUsize,
    sync::Arc,
    time::Duration,
};

use weir_core::{KeyStats, KeySurvey, Quota, RuleLimiter, Terms, Time};
use weir_wire::{Mode, Per, Snapshot};

use super::{
    cost::Cost,
    counters::{Counters, Counts, Unmatched},
    fields::Advice,
    jwt::Jwks,
    key::KeySpec,
    lower::{Lowered, LoweredLimits, LoweredRule},
    refusal::RefusalText,
    removed::{Removed, full_name},
    rule_set::{Placed, RuleSet},
};
use crate::{histogram, matching::Matcher};

/// Places of keys that are looked at in each rule for one scrape.
const SURVEYED: usize = 4096;

/// What is enforced at one moment, ready to decide. Replaced as a whole.
#[derive(Clone, Debug, Default)]
pub struct RulesInForce {
    /// None before the first snapshot.
    snapshot: Option<(Arc<Snapshot>, Time)>,
    policies: Vec<Arc<Policy>>,
    /// What decides on requests.
    pub(super) requests: Arc<RuleSet>,
    /// What decides on messages.
    pub(super) messages: Arc<RuleSet>,
    /// What tokens are verified with.
    jwks: Option<Arc<Jwks>>,
    removed: Removed,
    pub(super) unmatched: Arc<Unmatched>,
}

/// A policy as it is enforced.
#[derive(Debug)]
pub struct Policy {
    /// Counters belong to it.
    pub uid: String,
    /// The namespace of the Kubernetes object.
    pub namespace: String,
    /// The name of the Kubernetes object.
    pub name: String,
    /// Which content of the policy this is.
    pub revision: String,
    pub(super) mode: Mode,
    pub(super) deadline: Option<Duration>,
    /// Its rules, in order.
    pub rules: Vec<Arc<Rule>>,
}

/// A rule as it is enforced.
#[derive(Debug)]
pub struct Rule {
    /// Unique within the policy.
    pub name: String,
    pub(super) matcher: Matcher,
    pub(super) per: Per,
    pub(super) counters: Arc<Counters>,
    /// None: bypass.
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
    /// For [`explain`](super::explain): the limits' names in order.
    pub(super) names: Vec<Box<str>>,
    /// For the metrics: their numbers, without overrides.
    quotas: Vec<Quota>,
}

impl Limits {
    /// Whether a request beyond the limits may wait.
    pub(super) fn is_patient(&self) -> bool {
        self.max_wait.is_some()
    }

    /// Whether there is one limit and no other.
    pub(super) fn is_single(&self) -> bool {
        self.names.len() == 1
    }
}

impl Policy {
    /// Whether requests have a deadline.
    pub fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    /// As a policy says it.
    pub fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Enforce => "Enforce",
            Mode::Shadow => "Shadow",
            Mode::Disabled => "Disabled",
        }
    }
}

impl Rule {
    /// What it decided so far.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// How long those waited who had to, and got their turn.
    pub fn waits(&self) -> histogram::Snapshot {
        self.counters.waits()
    }

    /// Whether requests may wait for their turn, or did before it was changed.
    pub fn is_patient(&self) -> bool {
        self.limits.as_ref().is_some_and(Limits::is_patient) || self.counts().waited > 0
    }

    /// Whether what it matches is charged to no limit.
    pub fn is_bypass(&self) -> bool {
        self.limits.is_none()
    }

    /// Its limits by name, without overrides.
    pub fn limits(&self) -> impl Iterator<Item = (&str, Quota)> {
        let limits = self.limits.iter();
        limits.flat_map(|limits| limits.names.iter().map(AsRef::as_ref).zip(limits.quotas.iter().copied()))
    }

    /// How its table of keys is filled; none without a key.
    pub fn keys(&self) -> Option<KeyStats> {
        self.limits.as_ref().and_then(|limits| limits.limiter.keys())
    }

    /// How near keys are to their limits: so many of them are looked at that a scrape stays short.
    pub fn survey(&self, now: Time) -> Option<KeySurvey> {
        self.limits.as_ref()?.limiter.survey(now, SURVEYED)
    }
}

impl RulesInForce {
    /// The snapshot in force and since when its revision is.
    pub fn snapshot(&self) -> Option<(&Snapshot, Time)> {
        self.snapshot.as_ref().map(|(snapshot, since)| (&**snapshot, *since))
    }

    /// All policies, in the order of the snapshot.
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// How many requests no rule matched so far, under these rules and those before.
    pub fn unmatched(&self) -> u64 {
        self.unmatched.get()
    }

    pub(super) fn jwks(&self) -> Option<&Jwks> {
        self.jwks.as_deref()
    }

    /// The same rules, which believe only tokens that these keys have signed; with none of them, any token.
    pub fn with_jwks(&self, jwks: Option<Arc<Jwks>>) -> Self {
        Self { jwks, ..self.clone() }
    }

    /// The same rules under a later sequence.
    pub fn moved_on(&self, snapshot: Snapshot, now: Time) -> Self {
        let since = self.snapshot.as_ref().map_or(now, |(_, since)| *since);
        Self { snapshot: Some((Arc::new(snapshot), since)), ..self.clone() }
    }

    /// The rules that follow these.
    pub fn succeed(&self, snapshot: Snapshot, lowered: Lowered, clock: impl Fn() -> Time) -> Self {
        let before: HashMap<(&str, &str), &Arc<Rule>> =
            self.rules().map(|(policy, rule)| ((policy.uid.as_str(), rule.name.as_str()), rule)).collect();
        let now = clock();
        let mut next = Self {
            snapshot: Some((Arc::new(snapshot), now)),
            jwks: self.jwks.clone(),
            removed: self.removed_by(&lowered, now),
            unmatched: Arc::clone(&self.unmatched),
            ..Self::default()
        };
        for policy in lowered.policies {
            let full_name = full_name(&policy.namespace, &policy.name);
            let rules: Vec<Arc<Rule>> = policy
                .rules
                .into_iter()
                .map(|rule| {
                    let follows = before.get(&(policy.uid.as_str(), rule.name.as_str())).copied();
                    let counters = follows.map(|before| Arc::clone(&before.counters)).unwrap_or_default();
                    let removed = if follows.is_none() { next.removed.take(&full_name, &rule.name) } else { None };
                    let limits = follows.or(removed.as_ref()).and_then(|before| before.limits.as_ref());
                    Arc::new(Rule::follow(counters, limits, rule, &full_name, &clock))
                })
                .collect();
            let (uid, namespace, name, revision) = (policy.uid, policy.namespace, policy.name, policy.revision);
            let (mode, deadline) = (policy.mode, policy.deadline);
            next.policies.push(Arc::new(Policy { uid, namespace, name, revision, mode, deadline, rules }));
        }
        // Not before: what these rules take over takes no room.
        next.removed.trim();
        next.requests = Arc::new(next.rule_set(Per::Request));
        next.messages = Arc::new(next.rule_set(Per::Message));
        next
    }

    /// What is kept of rules that are gone once these are in force.
    fn removed_by(&self, lowered: &Lowered, now: Time) -> Removed {
        let rules = lowered.policies.iter().flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)));
        let stay: HashSet<(&str, &str)> =
            rules.map(|(policy, rule)| (policy.uid.as_str(), rule.name.as_str())).collect();
        let mut removed = self.removed.clone();
        removed.expire(now);
        for (policy, rule) in self.rules().filter(|(policy, rule)| !stay.contains(&(&policy.uid, &rule.name))) {
            removed.add(policy, rule, now);
        }
        removed
    }

    fn rules(&self) -> impl Iterator<Item = (&Policy, &Arc<Rule>)> {
        self.policies.iter().flat_map(|policy| policy.rules.iter().map(|rule| (&**policy, rule)))
    }

    /// How many rules that are gone have their limiters still, and until when the first of them.
    pub fn removed(&self) -> (usize, Option<Time>) {
        self.removed.held()
    }

    /// The same rules, without the limiters that have been kept for long enough.
    pub fn without_removed(&self, now: Time) -> Self {
        let mut next = self.clone();
        next.removed.expire(now);
        next
    }

    /// The rules that count one kind of event. A bypass is one for both; without a rule to bypass there is none.
    fn rule_set(&self, per: Per) -> RuleSet {
        let (mut bypasses, mut enforced, mut shadows) = (Vec::new(), Vec::new(), Vec::new());
        let policies = self.policies.iter().enumerate();
        for (index, policy) in policies {
            for rule in policy.rules.iter().filter(|rule| rule.is_bypass() || rule.per == per) {
                let placed = Placed::new(rule, index, policy.deadline);
                match policy.mode {
                    Mode::Enforce if rule.is_bypass() => bypasses.push(placed),
                    Mode::Enforce => enforced.push(placed),
                    Mode::Shadow => shadows.push(placed),
                    Mode::Disabled => {}
                }
            }
        }
        let counts = enforced.iter().chain(&shadows).any(|placed| !placed.rule.is_bypass());
        if per == Per::Message && !counts {
            return RuleSet::default();
        }
        RuleSet::new(bypasses, enforced, shadows)
    }
}

impl Rule {
    /// `before` is what a rule charged whose limiter this one takes over, if its key is the same.
    fn follow(
        counters: Arc<Counters>,
        before: Option<&Limits>,
        rule: LoweredRule,
        policy: &str,
        clock: &impl Fn() -> Time,
    ) -> Self {
        let LoweredRule { name, matcher, per, limits } = rule;
        let limits = limits.map(|lowered| {
            let LoweredLimits { key, terms, max_keys, cost, max_wait, refusal, advice } = lowered;
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
}

fn full(now: Time, terms: Terms, max_keys: Option<NonZeroUsize>) -> RuleLimiter {
    match max_keys {
        Some(max_keys) => RuleLimiter::keyed(now, terms, max_keys),
        None => RuleLimiter::shared(now, terms),
    }
}
