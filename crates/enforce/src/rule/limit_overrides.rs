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

use super::{Rule, Stores};
use crate::{
    counters::Counters,
    lower::{DescriptorLimit, LoweredLimitOverride},
};

/// The maximum number of different limits of one rule. Each of them has a table of keys.
const MOST: usize = 16;

/// The limits that descriptors brought to a rule.
#[derive(Debug)]
pub(super) struct LimitOverrides {
    lowered: LoweredLimitOverride,
    /// The full name of the policy.
    policy: String,
    stores: Stores,
    rules: Mutex<HashMap<DescriptorLimit, Option<Arc<Rule>>>>,
    has_warned: AtomicBool,
}

impl LimitOverrides {
    /// Takes over the counts of the limits that descriptors brought to the earlier rule.
    pub(super) fn new(
        (before, was_removed): (Option<&Self>, bool),
        lowered: LoweredLimitOverride,
        counters: &Arc<Counters>,
        policy: &str,
        (clock, stores): (&impl Fn() -> Time, &Stores),
    ) -> Self {
        let store = lowered.store().and_then(|name| stores.get_key_value(name));
        let stores = store.map(|(name, client)| (name.clone(), Arc::clone(client))).into_iter().collect();
        let (rules, has_warned) = (Mutex::default(), AtomicBool::new(false));
        let own = Self { lowered, policy: policy.to_owned(), stores, rules, has_warned };
        let known = before.map(|before| before.rules.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let retuned = known.into_iter().flatten().map(|(limit, earlier)| {
            let earlier = earlier.as_deref();
            (limit, own.create(limit, (earlier, was_removed), counters, clock))
        });
        let retuned = retuned.collect();
        Self { rules: Mutex::new(retuned), ..own }
    }

    /// Returns the rule with this limit. `None` if the limit does not fit the rule's strategy, or if descriptors have
    /// brought too many different limits.
    pub(super) fn rule_with(
        &self,
        limit: DescriptorLimit,
        counters: &Arc<Counters>,
        clock: impl Fn() -> Time,
    ) -> Option<Arc<Rule>> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rules.get(&limit) {
            return known.clone();
        }
        if rules.len() >= MOST {
            drop(rules);
            if !self.has_warned.swap(true, Relaxed) {
                tracing::warn!(
                    policy = self.policy,
                    "a rule has got more than {MOST} different limits in descriptors: use fewer; until the next change \
                     of the policy, other descriptors have the rule's own limit"
                );
            }
            return None;
        }
        let created = self.create(limit, (None, false), counters, &clock);
        rules.insert(limit, created.clone());
        created
    }

    fn create(
        &self,
        limit: DescriptorLimit,
        before: (Option<&Rule>, bool),
        counters: &Arc<Counters>,
        clock: &impl Fn() -> Time,
    ) -> Option<Arc<Rule>> {
        let lowered = self.lowered.rule_with(limit, &self.policy)?;
        let context = (clock, &self.stores);
        Some(Arc::new(Rule::from_lowered(Arc::clone(counters), before, lowered, &self.policy, context)))
    }
}
