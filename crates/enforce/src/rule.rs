//! A rule in force, with its policy and its limits.

mod bans;
mod limit_overrides;

use std::{collections::HashMap, num::NonZeroUsize, sync::Arc, time::Duration};

use weir_core::{KeyStats, KeySurvey, Quota, RuleLimiter, Terms, Time};
use weir_store::{SharedKeys, SharedLimiter, StoreClient};
use weir_wire::{Mode, OPERATOR_STORE, Per};

use self::limit_overrides::LimitOverrides;
use super::{
    ban::Ban,
    concurrency::Concurrency,
    cost::Cost,
    key::KeySpec,
    lower::{DescriptorLimit, LoweredLimits, LoweredRule, LoweredShared, RuleKind},
    policy_deadline::PolicyDeadline,
    prepared_refusal::RefusalText,
    quota_headers::QuotaHeaders,
    statistics::{RuleStatistics, Statistics},
};
use crate::{histogram::HistogramValues, matching::Matcher};

/// The maximum number of cells of a rule that one scrape reads.
const SURVEYED: usize = 4096;

/// A policy in force.
#[derive(Debug)]
#[non_exhaustive]
pub struct Policy {
    /// The UID of the Kubernetes object, with which the statistics and the counts of rules of scope Pod are associated.
    pub uid: String,
    /// The namespace of the Kubernetes object.
    pub namespace: String,
    /// The name of the Kubernetes object.
    pub name: String,
    /// Identifies the content of the policy.
    pub revision: String,
    pub(super) mode: Mode,
    /// The domain whose descriptors the rules limit. `None`: the rules limit HTTP requests.
    pub(super) domain: Option<String>,
    pub(super) deadline: Option<Arc<PolicyDeadline>>,
    /// The policy's rules, in order.
    pub rules: Vec<Arc<Rule>>,
}

/// A rule in force.
#[derive(Debug)]
pub struct Rule {
    /// The name, which is unique within the policy.
    pub name: String,
    /// The weaker of the rule's mode and the policy's mode.
    pub(super) mode: Mode,
    pub(super) matcher: Matcher,
    /// The names of the rules of the policy that do not apply to a question if this rule matches.
    pub(super) replaces: Vec<String>,
    pub(super) per: Per,
    pub(super) statistics: Arc<Statistics>,
    /// The prepared refusals. A bypass never refuses.
    pub(super) refusal: RefusalText,
    pub(super) kind: RuleKind<Limits, Concurrency>,
    /// `None` if the rule accepts no limits of descriptors.
    limit_overrides: Option<Arc<LimitOverrides>>,
}

/// The limits of a rule, and how a request is charged to them.
#[derive(Debug)]
pub(super) struct Limits {
    /// Unused if a store counts the rule.
    limiter: RuleLimiter,
    pub(super) key: KeySpec,
    pub(super) cost: Cost,
    /// The maximum wait of a request for its turn. `None` if requests do not wait.
    pub(super) max_wait: Option<Duration>,
    pub(super) quota_headers: Arc<QuotaHeaders>,
    /// The limits' names in order, for [`explain`](super::explain).
    pub(super) names: Vec<Box<str>>,
    /// The names of the limits in order, each as `rule/limit`, for answers to descriptors.
    pub(super) full_names: Vec<Arc<str>>,
    /// The limits' quotas without overrides, for the metrics.
    quotas: Vec<Quota>,
    /// The part of a rule that a store counts.
    pub(super) shared: Option<SharedPart>,
    /// `None` for a rule without a ban.
    pub(super) ban: Option<Ban>,
}

/// The part of a rule that a store counts.
#[derive(Debug)]
pub(super) struct SharedPart {
    pub(super) limiter: Arc<SharedLimiter>,
    /// The limits, with the overrides for some keys.
    pub(super) terms: Terms,
}

/// The stores that rules use, by name.
pub type Stores = HashMap<String, Arc<StoreClient>>;

impl Limits {
    /// Takes over the limiter of the predecessor if it has an equal key.
    fn from_lowered(
        predecessor: Predecessor<'_>,
        lowered: LoweredLimits,
        rule: &str,
        (clock, stores): (&impl Fn() -> Time, &Stores),
    ) -> Self {
        let LoweredLimits { key, terms, max_keys, cost, max_wait, quota_headers, shared, ban } = lowered;
        let before = predecessor.rule().and_then(Rule::rates).filter(|before| before.key == key);
        let quotas = terms.quotas(None).to_vec();
        let names: Vec<Box<str>> = terms.limits().map(|(limit, _)| limit.into()).collect();
        let full_names = names.iter().map(|limit| format!("{rule}.{limit}").into()).collect();
        let shared = shared.and_then(|shared| SharedPart::from_lowered(before, &terms, shared, stores));
        // If a store counts the keys, the limiter needs no table of keys.
        let max_keys = max_keys.filter(|_| shared.is_none());
        let limiter = match before.filter(|before| before.shared.is_some() == shared.is_some()) {
            Some(before) => before.limiter.retune(clock, terms, max_keys),
            None => full(clock(), terms, max_keys),
        };
        let ban = ban.map(|terms| {
            let in_force = before.filter(|_| matches!(predecessor, Predecessor::InForce(_)));
            Ban::from_lowered(in_force.and_then(|before| before.ban.as_ref()), terms, clock())
        });
        let quota_headers = Arc::new(quota_headers);
        Self { limiter, key, cost, max_wait, quota_headers, names, full_names, quotas, shared, ban }
    }

    /// The limiter of a rule of scope Pod.
    pub(super) fn pod_limiter(&self) -> &RuleLimiter {
        debug_assert!(self.shared.is_none(), "a store counts the rule");
        &self.limiter
    }

    /// Whether a request beyond the limits may wait.
    pub(super) fn is_patient(&self) -> bool {
        self.max_wait.is_some()
    }

    /// Returns the quota of a limit for a key with or without an override.
    pub(super) fn quota(&self, limit: usize, override_index: Option<usize>) -> Option<Quota> {
        let own = self.shared.as_ref().and_then(|shared| shared.terms.quotas(override_index).get(limit).copied());
        own.or_else(|| self.quotas.get(limit).copied())
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

    /// Returns the shorter of a wait and the deadline.
    pub(super) fn bounded(&self, wait: Duration) -> Duration {
        self.deadline.as_ref().map_or(wait, |deadline| wait.min(deadline.after))
    }

    /// Returns the mode as it is spelled in a policy.
    pub fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Enforce => "Enforce",
            Mode::Shadow => "Shadow",
            Mode::Disabled => "Disabled",
        }
    }
}

/// The earlier rule with the name of a new one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Predecessor<'a> {
    None,
    InForce(&'a Rule),
    /// The rule was removed a short time ago, and its limiter is kept.
    Removed(&'a Rule),
}

impl<'a> Predecessor<'a> {
    fn rule(self) -> Option<&'a Rule> {
        match self {
            Self::None => None,
            Self::InForce(rule) | Self::Removed(rule) => Some(rule),
        }
    }

    /// Replaces the rule by another one of the same kind.
    fn map(self, replace: impl FnOnce(&'a Rule) -> Option<&'a Rule>) -> Self {
        match self {
            Self::None => Self::None,
            Self::InForce(rule) => replace(rule).map_or(Self::None, Self::InForce),
            Self::Removed(rule) => replace(rule).map_or(Self::None, Self::Removed),
        }
    }
}

impl Rule {
    /// Creates a rule. If its predecessor has an equal key, the new rule takes over the limiter. Bans are taken over only
    /// from a rule in force.
    pub(super) fn from_lowered(
        statistics: Arc<Statistics>,
        predecessor: Predecessor<'_>,
        rule: LoweredRule,
        policy: &str,
        (clock, stores): (&impl Fn() -> Time, &Stores),
    ) -> Self {
        let LoweredRule { name, mode, matcher, replaces, per, refusal, kind, limit_override } = rule;
        let limit_overrides =
            limit_override.map(|own| LimitOverrides::new(predecessor, own, &statistics, policy, (clock, stores)));
        let kind = match kind {
            RuleKind::Bypass => RuleKind::Bypass,
            RuleKind::Deny => RuleKind::Deny,
            RuleKind::Rates(lowered) => {
                RuleKind::Rates(Limits::from_lowered(predecessor, lowered, &name, (clock, stores)))
            }
            RuleKind::Concurrency(lowered) => {
                let before = predecessor.rule().and_then(Self::concurrency);
                RuleKind::Concurrency(Concurrency::from_lowered(before, lowered))
            }
        };
        let (error, names) = match &kind {
            RuleKind::Concurrency(own) => ("too many concurrent requests", std::slice::from_ref(&own.name)),
            RuleKind::Rates(limits) => ("rate limited", &*limits.names),
            RuleKind::Bypass | RuleKind::Deny => ("denied", &[][..]),
        };
        let refusal = RefusalText::new(refusal, (policy, &name), error, names);
        Self { name, mode, matcher, replaces, per, statistics, refusal, kind, limit_overrides }
    }

    /// The rates. `None` for a bypass, for a rule that denies, and for a rule with a concurrent limit.
    #[inline]
    pub(super) fn rates(&self) -> Option<&Limits> {
        if let RuleKind::Rates(limits) = &self.kind { Some(limits) } else { None }
    }

    /// The rates of a rule that a demand or a cost names.
    pub(super) fn charged_rates(&self) -> &Limits {
        self.rates().expect("only rules with rates are charged")
    }

    /// `None` for a rule without a concurrent limit.
    pub(super) fn concurrency(&self) -> Option<&Concurrency> {
        if let RuleKind::Concurrency(own) = &self.kind { Some(own) } else { None }
    }

    /// Returns true if the rule accepts the limit that a descriptor contains, and this limit has no requests.
    pub(super) fn admits_none(&self, limit: Option<DescriptorLimit>) -> bool {
        self.limit_overrides.is_some() && limit.is_some_and(|limit| limit.requests == 0)
    }

    /// Returns the rule with the limit that a descriptor contains, or the rule itself if it does not accept the limit.
    pub(super) fn with_limit(self: &Arc<Self>, limit: Option<DescriptorLimit>, clock: impl Fn() -> Time) -> Arc<Self> {
        let overridden =
            limit.and_then(|limit| self.limit_overrides.as_ref()?.rule_with(limit, &self.statistics, clock));
        overridden.unwrap_or_else(|| Arc::clone(self))
    }

    /// Returns the same rule as [`Self::with_limit`], but stores no new limit.
    pub(super) fn explained_with_limit(
        self: &Arc<Self>,
        limit: Option<DescriptorLimit>,
        clock: impl Fn() -> Time,
    ) -> Arc<Self> {
        let overridden =
            limit.and_then(|limit| self.limit_overrides.as_ref()?.explained(limit, &self.statistics, clock));
        overridden.unwrap_or_else(|| Arc::clone(self))
    }

    /// Returns the rule's statistics.
    pub fn statistics(&self) -> RuleStatistics {
        self.statistics.read()
    }

    /// Returns the waits of admitted requests.
    pub fn waits(&self) -> HistogramValues {
        self.statistics.waits()
    }

    /// Returns the scope as it is spelled in a policy: whether all pods together have the limits, or each pod alone.
    pub fn scope(&self) -> &'static str {
        match self.rates().and_then(|limits| limits.shared.as_ref()) {
            None => "Pod",
            Some(shared) if shared.limiter.client().name() == OPERATOR_STORE => "Fleet",
            Some(_) => "Shared",
        }
    }

    /// Whether requests may wait for their turn, or some have waited before a change of the rule.
    pub fn is_patient(&self) -> bool {
        self.rates().is_some_and(Limits::is_patient) || self.statistics().waited > 0
    }

    /// Whether requests that the rule matches are exempt from all limits.
    pub fn is_bypass(&self) -> bool {
        matches!(self.kind, RuleKind::Bypass)
    }

    /// Whether it does not limit: it denies or exempts all requests that it matches.
    pub(super) fn is_exception(&self) -> bool {
        matches!(self.kind, RuleKind::Bypass | RuleKind::Deny)
    }

    /// Whether requests that the rule matches are refused.
    pub(super) fn is_deny(&self) -> bool {
        matches!(self.kind, RuleKind::Deny)
    }

    /// The prepared response fields.
    pub(super) fn quota_headers(&self) -> Option<&Arc<QuotaHeaders>> {
        let of_concurrency = || self.concurrency().map(|own| &own.quota_headers);
        self.rates().map(|limits| &limits.quota_headers).or_else(of_concurrency)
    }

    /// What requests are counted separately by.
    pub(super) fn key(&self) -> Option<&KeySpec> {
        self.rates().map(|limits| &limits.key).or_else(|| Some(&self.concurrency()?.key))
    }

    /// How many units a request costs.
    pub(super) fn cost(&self) -> Option<&Cost> {
        self.rates().map(|limits| &limits.cost).or_else(|| Some(&self.concurrency()?.cost))
    }

    /// Whether the rule sets headers in all responses to requests that it matches.
    pub(super) fn sets_headers(&self) -> bool {
        self.quota_headers().is_some_and(|quota_headers| quota_headers.has_own())
    }

    /// Whether a request can be charged other than one unit of the rates. If so, requests cannot be compared with them.
    pub fn is_weighted(&self) -> bool {
        self.rates().is_some_and(|limits| limits.cost != Cost::Fixed(1))
    }

    /// The name of its concurrent limit, the limit without overrides, and how many requests of all keys are in flight.
    pub fn in_flight(&self) -> Option<(&str, u64, u64)> {
        self.concurrency().map(|own| (&*own.name, own.limits.limit.get(), own.total()))
    }

    /// Returns the limits by name, without overrides.
    pub fn limits(&self) -> impl Iterator<Item = (&str, Quota)> {
        let limits = self.rates().into_iter();
        limits.flat_map(|limits| limits.names.iter().map(AsRef::as_ref).zip(limits.quotas.iter().copied()))
    }

    /// Returns the usage of the table of keys. `None` if the rule has no key.
    pub fn keys(&self) -> Option<KeyStats> {
        let limits = self.rates()?;
        let Some(shared) = &limits.shared else { return limits.limiter.keys() };
        let SharedKeys { tracked, capacity, evicted, overflowed } = shared.limiter.keys();
        (capacity > 1).then_some(KeyStats { tracked, capacity, evicted, overflowed })
    }

    /// Returns the remaining units of a rule without a key, and the size of the limit with the smallest part of its
    /// requests left. `None` for a rule with a key, and for a rule of which the store has not answered, or is lost.
    pub fn headroom(&self, now: Time) -> Option<(u64, u64)> {
        let limits = self.rates()?;
        match &limits.shared {
            None => limits.limiter.headroom(now),
            Some(_) if self.keys().is_some() => None,
            Some(shared) => shared.limiter.headroom(limits.key.hash(&[])),
        }
    }

    /// Returns how near keys are to their limits. Reads a bounded number of keys, so that a scrape is short.
    pub fn survey(&self, now: Time) -> Option<KeySurvey> {
        self.rates().filter(|limits| limits.shared.is_none())?.pod_limiter().survey(now, SURVEYED)
    }
}

impl SharedPart {
    /// Continues with the limiter of the earlier rule, which has the same key, if the store and the name of the counts are
    /// the same.
    /// Returns `None` if `stores` does not have the store.
    fn from_lowered(
        before: Option<&Limits>,
        terms: &Terms,
        LoweredShared { store, rule }: LoweredShared,
        stores: &Stores,
    ) -> Option<Self> {
        let client = stores.get(&store)?;
        let same = before.and_then(|before| before.shared.as_ref());
        let limiter = match same.filter(|before| before.limiter.goes_on_with(client, &rule)) {
            Some(before) => {
                before.limiter.retune(rule);
                Arc::clone(&before.limiter)
            }
            None => SharedLimiter::new(Arc::clone(client), rule),
        };
        Some(Self { limiter, terms: terms.clone() })
    }
}

fn full(now: Time, terms: Terms, max_keys: Option<NonZeroUsize>) -> RuleLimiter {
    match max_keys {
        Some(max_keys) => RuleLimiter::keyed(now, terms, max_keys),
        None => RuleLimiter::unkeyed(now, terms),
    }
}
