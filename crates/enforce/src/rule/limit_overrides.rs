//! The limits that descriptors brought to a rule. Each of them has its own counts, in a rule that differs from the
//! policy's rule only in its limit.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use weir_core::Time;

use super::{Predecessor, Rule, Stores};
use crate::{
    lower::{DescriptorLimit, LoweredLimitOverride},
    statistics::Statistics,
};

/// The maximum number of different limits of one rule. Each of them has a table of keys.
const MOST: usize = 16;

/// A limit with the default burst is at full credit after so many periods without a request.
const PERIODS: u32 = 2;

/// The limits that descriptors brought to a rule.
#[derive(Debug)]
pub(super) struct LimitOverrides {
    lowered: LoweredLimitOverride,
    /// The full name of the policy.
    policy: String,
    stores: Stores,
    rules: Mutex<HashMap<DescriptorLimit, Known>>,
    has_warned: AtomicBool,
}

/// A limit that a descriptor brought.
#[derive(Clone, Debug)]
struct Known {
    /// `None` if the limit does not fit the rule's strategy.
    rule: Option<Arc<Rule>>,
    /// The time of the last question with this limit.
    used: Time,
}

impl Known {
    /// Returns false if all keys are at full credit, so that there are no counts to lose. The period of the rule can be
    /// longer than that of the limit, if the limit was lowered.
    fn has_counts(&self, limit: DescriptorLimit, now: Time) -> bool {
        let limits = self.rule.as_ref().and_then(|rule| rule.limits.as_ref());
        let period = limits.and_then(|limits| limits.quota(0, None)).map_or(limit.period, |quota| quota.period());
        now < self.used.saturating_add(period.saturating_mul(PERIODS))
    }
}

impl LimitOverrides {
    /// Takes over the counts of the limits that descriptors brought to the earlier rule.
    pub(super) fn new(
        predecessor: Predecessor<'_>,
        lowered: LoweredLimitOverride,
        statistics: &Arc<Statistics>,
        policy: &str,
        (clock, stores): (&impl Fn() -> Time, &Stores),
    ) -> Self {
        let store = lowered.store().and_then(|name| stores.get_key_value(name));
        let stores = store.map(|(name, client)| (name.clone(), Arc::clone(client))).into_iter().collect();
        let (rules, has_warned) = (Mutex::default(), AtomicBool::new(false));
        let own = Self { lowered, policy: policy.to_owned(), stores, rules, has_warned };
        let before = predecessor.rule().and_then(|rule| rule.limit_overrides.as_ref());
        let known = before.map(|before| before.rules.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let retuned = known.into_iter().flatten().map(|(limit, Known { rule, used })| {
            let rule = own.create(limit, predecessor.map(|_| rule.as_deref()), statistics, clock);
            (limit, Known { rule, used })
        });
        let retuned = retuned.collect();
        Self { rules: Mutex::new(retuned), ..own }
    }

    /// Returns the rule with this limit. `None` if the limit does not fit the rule's strategy, or if descriptors have
    /// brought too many different limits.
    pub(super) fn rule_with(
        &self,
        limit: DescriptorLimit,
        statistics: &Arc<Statistics>,
        clock: impl Fn() -> Time,
    ) -> Option<Arc<Rule>> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock();
        if let Some(known) = rules.get_mut(&limit) {
            known.used = now;
            return known.rule.clone();
        }
        if rules.len() >= MOST {
            rules.retain(|limit, known| known.has_counts(*limit, now));
        }
        if rules.len() >= MOST {
            drop(rules);
            if !self.has_warned.swap(true, Relaxed) {
                tracing::warn!(
                    policy = self.policy,
                    "a rule has got more than {MOST} different limits in descriptors: use fewer; descriptors with other \
                     limits have the rule's own limit"
                );
            }
            return None;
        }
        let rule = self.create(limit, Predecessor::None, statistics, &clock);
        rules.insert(limit, Known { rule: rule.clone(), used: now });
        rule
    }

    /// Returns the rule that [`Self::rule_with`] would return now, and changes nothing.
    pub(super) fn explained(
        &self,
        limit: DescriptorLimit,
        statistics: &Arc<Statistics>,
        clock: impl Fn() -> Time,
    ) -> Option<Arc<Rule>> {
        let rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rules.get(&limit) {
            return known.rule.clone();
        }
        let now = clock();
        let has_room = rules.len() < MOST || rules.iter().any(|(limit, known)| !known.has_counts(*limit, now));
        drop(rules);
        has_room.then(|| self.create(limit, Predecessor::None, statistics, &clock)).flatten()
    }

    fn create(
        &self,
        limit: DescriptorLimit,
        predecessor: Predecessor<'_>,
        statistics: &Arc<Statistics>,
        clock: &impl Fn() -> Time,
    ) -> Option<Arc<Rule>> {
        let lowered = self.lowered.rule_with(limit, &self.policy)?;
        let context = (clock, &self.stores);
        Some(Arc::new(Rule::from_lowered(Arc::clone(statistics), predecessor, lowered, &self.policy, context)))
    }
}
