//! The headers that rules set in all responses to a request, for responses that do not come from the app: a refusal by
//! another rule, or the response to a request that exceeded its deadline.
//!
//! The numbers in these headers are read when the response is created.

use std::sync::Arc;

use http::HeaderMap;
use weir_core::Time;
use weir_tower::MonotonicClock;

use crate::{
    decide::{
        charge::Demand,
        outcome::{quota_state, refused_state},
        refusal::Refusal,
        shared::SharedDemand,
    },
    quota_headers::{QuotaHeaders, QuotaState},
    rule::Rule,
};

/// The rules that match a request and set headers, in their order.
#[derive(Clone, Debug)]
pub(crate) struct HeaderRules {
    rules: Arc<[HeaderRule]>,
    clock: MonotonicClock,
}

/// A rule that sets headers, with the key and the cost of the request.
#[derive(Clone, Debug)]
pub(crate) struct HeaderRule {
    pub(crate) rule: Arc<Rule>,
    pub(crate) key: Box<[u8]>,
    pub(crate) cost: u64,
}

impl HeaderRules {
    /// Returns `None` if none of these rules sets headers.
    pub(crate) fn new(rules: impl Iterator<Item = HeaderRule>, clock: MonotonicClock) -> Option<Self> {
        let mut rules: Vec<HeaderRule> = rules.filter(|one| one.rule.sets_headers()).collect();
        rules.sort_by_key(|one| one.rule.quota_headers().map(|quota_headers| quota_headers.position()));
        (!rules.is_empty()).then(|| Self { rules: rules.into(), clock })
    }

    /// Adds the headers to a refusal, if another rule than the refusing one is among these rules.
    pub(crate) fn add_to(&self, refusal: &mut Refusal<'_>) {
        let (own, state) = (refusal.rule, refusal.state);
        let is_own = |rule: &Arc<Rule>| Arc::ptr_eq(rule, own);
        if !self.rules.iter().all(|one| is_own(&one.rule)) {
            refusal.headers = self.states(|rule| is_own(rule).then_some(state));
        }
    }

    /// Returns the prepared headers of all rules, with the states of their limits. `known` returns the state of a rule
    /// that is known already.
    fn states(&self, known: impl Fn(&Arc<Rule>) -> Option<QuotaState>) -> Vec<(Arc<QuotaHeaders>, QuotaState)> {
        let now = self.clock.now();
        let of = |one: &HeaderRule| {
            let state = known(&one.rule).or_else(|| one.state(now)).unwrap_or_default();
            Some((Arc::clone(one.rule.quota_headers()?), state))
        };
        self.rules.iter().filter_map(of).collect()
    }

    /// Inserts the headers.
    pub(crate) fn insert(&self, headers: &mut HeaderMap) {
        self.states(|_| None).iter().for_each(|(quota_headers, state)| quota_headers.insert_own(state, headers));
    }
}

impl HeaderRule {
    /// The state of the rule's tightest limit.
    fn state(&self, now: Time) -> Option<QuotaState> {
        let Self { rule, key, cost } = self;
        if let Some(concurrency) = rule.concurrency() {
            return Some(concurrency.peek(key, *cost).unwrap_or_else(|none| none.state));
        }
        let limits = rule.rates()?;
        if let Some(shared) = SharedDemand::of(&Demand::new(rule, limits, key, *cost), now) {
            return Some(shared.known_state(None));
        }
        Some(match limits.pod_limiter().peek(now, key, *cost) {
            Ok(tightest) => quota_state(&tightest, tightest.standing.remaining()),
            Err(refused) => refused_state(&refused, refused.retry_after()),
        })
    }
}
