//! A line in the log for some of the refusals: a rule's first, and then at most one a second, with the number of those
//! that came in between. It says which limit refused and nothing of the request: keys are other people's secrets.

use std::sync::Arc;

use weir_core::Time;

use super::{decide::Refusal, in_force::RulesInForce};

impl RulesInForce {
    /// Costs a refusal that is not logged one look at a limiter and one addition.
    pub(super) fn log(&self, refusal: &Refusal, now: Time) {
        let Refusal { rule, place, .. } = refusal;
        let Some(unlogged) = rule.counters.refusals.take(now) else { return };
        // What is to be said is looked up only now: nobody keeps it at hand for one line a second.
        let Some((index, policy)) = self
            .policies()
            .iter()
            .enumerate()
            .find(|(_, policy)| policy.rules.iter().any(|one| Arc::ptr_eq(one, rule)))
        else {
            return;
        };
        let rules = self.snapshot().map_or(&[][..], |(snapshot, _)| &snapshot.policies[index].rules);
        let limit = rules.iter().find(|one| one.name == rule.name).and_then(|rule| rule.limits.get(place.limit));
        tracing::info!(
            namespace = policy.namespace,
            policy = policy.name,
            rule = rule.name,
            limit = limit.map(|limit| limit.name.as_str()),
            retry_after_seconds = place.seconds,
            unlogged,
            "refused"
        );
    }
}
