//! The limits in descriptors, which replace the limit of a rule. Each of them has its own counts, in a rule that
//! differs from the policy's rule only in its limit.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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

/// A limit with the default burst is at full credit after this number of periods without a request.
const PERIODS: u32 = 2;

/// The limits of the descriptors of a rule and of its predecessors.
#[derive(Debug)]
pub(super) struct LimitOverrides {
    /// The full name of the policy.
    policy: String,
    state: Mutex<State>,
    has_warned: AtomicBool,
}

/// The part that a change of the rule replaces.
#[derive(Debug)]
struct State {
    lowered: LoweredLimitOverride,
    stores: Stores,
    rules: HashMap<DescriptorLimit, OverrideRule>,
}

/// The limit of a descriptor.
#[derive(Clone, Debug)]
struct OverrideRule {
    /// `None` if the limit does not fit the rule's strategy.
    rule: Option<Arc<Rule>>,
    /// The time of the last question with this limit.
    used: Time,
}

impl OverrideRule {
    /// Returns false if all keys are at full credit, so that there are no counts to lose. The period of the rule can be
    /// longer than that of the limit, if the limit was capped.
    fn has_counts(&self, limit: DescriptorLimit, now: Time) -> bool {
        let limits = self.rule.as_ref().and_then(|rule| rule.rates());
        let period = limits.and_then(|limits| limits.quota(0, None)).map_or(limit.period, |quota| quota.period());
        now < self.used.saturating_add(period.saturating_mul(PERIODS))
    }
}

impl LimitOverrides {
    /// Continues with the limits of the previous rule. The two rules share them: requests use the previous rule until
    /// the new one is in force, and their limits must not be lost.
    pub(super) fn new(
        predecessor: Predecessor<'_>,
        lowered: LoweredLimitOverride,
        statistics: &Arc<Statistics>,
        policy: &str,
        (clock, stores): (&impl Fn() -> Time, &Stores),
    ) -> Arc<Self> {
        let store = lowered.store().and_then(|name| stores.get_key_value(name));
        let stores = store.map(|(name, client)| (name.clone(), Arc::clone(client))).into_iter().collect();
        let next = State { lowered, stores, rules: HashMap::new() };
        let Some(before) = predecessor.rule().and_then(|rule| rule.limit_overrides.as_ref()) else {
            let (state, has_warned) = (Mutex::new(next), AtomicBool::new(false));
            return Arc::new(Self { policy: policy.to_owned(), state, has_warned });
        };
        let mut state = before.state();
        let known = mem::replace(&mut *state, next).rules;
        for (limit, OverrideRule { rule, used }) in known {
            let rule = state.create(limit, predecessor.map(|_| rule.as_deref()), (statistics, policy), clock);
            state.rules.insert(limit, OverrideRule { rule, used });
        }
        drop(state);
        Arc::clone(before)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rule with this limit. `None` if the limit does not fit the rule's strategy, or if descriptors
    /// contain too many different limits.
    pub(super) fn rule_with(
        &self,
        limit: DescriptorLimit,
        statistics: &Arc<Statistics>,
        clock: impl Fn() -> Time,
    ) -> Option<Arc<Rule>> {
        let mut state = self.state();
        let now = clock();
        if let Some(known) = state.rules.get_mut(&limit) {
            known.used = now;
            return known.rule.clone();
        }
        if state.rules.len() >= MOST {
            state.rules.retain(|limit, known| known.has_counts(*limit, now));
        }
        if state.rules.len() >= MOST {
            drop(state);
            if !self.has_warned.swap(true, Relaxed) {
                tracing::warn!(
                    policy = self.policy,
                    "descriptors contain more than {MOST} different limits for a rule: use fewer; a descriptor with a \
                     further limit gets the rule's own limit"
                );
            }
            return None;
        }
        let rule = state.create(limit, Predecessor::None, (statistics, &self.policy), &clock);
        state.rules.insert(limit, OverrideRule { rule: rule.clone(), used: now });
        rule
    }

    /// Returns the rule that [`Self::rule_with`] would return now, and changes nothing.
    pub(super) fn explained(
        &self,
        limit: DescriptorLimit,
        statistics: &Arc<Statistics>,
        clock: impl Fn() -> Time,
    ) -> Option<Arc<Rule>> {
        let state = self.state();
        if let Some(known) = state.rules.get(&limit) {
            return known.rule.clone();
        }
        let now = clock();
        let has_room =
            state.rules.len() < MOST || state.rules.iter().any(|(limit, known)| !known.has_counts(*limit, now));
        has_room.then(|| state.create(limit, Predecessor::None, (statistics, &self.policy), &clock)).flatten()
    }
}

impl State {
    fn create(
        &self,
        limit: DescriptorLimit,
        predecessor: Predecessor<'_>,
        (statistics, policy): (&Arc<Statistics>, &str),
        clock: &impl Fn() -> Time,
    ) -> Option<Arc<Rule>> {
        let lowered = self.lowered.rule_with(limit, policy)?;
        let context = (clock, &self.stores);
        Some(Arc::new(Rule::from_lowered(Arc::clone(statistics), predecessor, lowered, policy, context)))
    }
}
