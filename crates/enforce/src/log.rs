//! A line in the log for some of the refusals: a rule's first, and then at most one a second, with the number of those
//! that came in between. It says which limit refused and nothing of the request: keys are other people's secrets, and are
//! named only if the flag says so.

use std::sync::Arc;

use super::{decide::Asked, in_force::RulesInForce, refusal::Refusal};

impl RulesInForce {
    /// Costs a refusal that is not logged one look at a time. `keys` says whether to name the key.
    #[inline]
    pub(super) fn log(&self, refusal: &Refusal<'_>, asked: &Asked<'_>, keys: bool) {
        if let Some(unlogged) = refusal.rule.counters.log_limited(refusal.at) {
            self.tell(refusal, asked, keys, unlogged);
        }
    }

    #[cold]
    fn tell(&self, refusal: &Refusal<'_>, asked: &Asked<'_>, keys: bool, unlogged: u64) {
        let Refusal { rule, state, .. } = refusal;
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
        let limit = rules.iter().find(|one| one.name == rule.name).and_then(|rule| rule.limits.get(state.limit));
        tracing::info!(
            namespace = policy.namespace,
            policy = policy.name,
            rule = rule.name,
            limit = limit.map(|limit| limit.name.as_str()),
            key = keys.then(|| refusal.key(asked)).flatten().map(tracing::field::display),
            retry_after_seconds = state.seconds,
            unlogged,
            "refused"
        );
    }
}

impl Refusal<'_> {
    /// The values of the key that was refused, as a JSON list, which no value can break out of; none without a key.
    fn key(&self, asked: &Asked<'_>) -> Option<String> {
        let key = &self.rule.limits.as_ref()?.key;
        let parts = key.show(&asked.request, &asked.tokens);
        (!parts.is_empty()).then(|| serde_json::to_string(&parts).expect("text always has a JSON form"))
    }
}
