//! Logs some of the refusals: a rule's first, then at most one a second, with the number of refusals between them. A
//! line names the limit, but contains no part of the request. Keys may be secrets of other people, so a line contains
//! the key only if the flag says so.

use std::sync::Arc;

use super::{decide::Asked, in_force::RulesInForce, refusal::Refusal};

impl RulesInForce {
    /// A refusal that is not logged costs one read of the clock. `keys` says whether to name the key.
    #[inline]
    pub(super) fn log(&self, refusal: &Refusal<'_>, asked: &Asked<'_>, keys: bool) {
        if let Some(unlogged) = refusal.rule.counters.log_limited(refusal.at) {
            self.tell(refusal, asked, keys, unlogged);
        }
    }

    #[cold]
    fn tell(&self, refusal: &Refusal<'_>, asked: &Asked<'_>, keys: bool, unlogged: u64) {
        let Refusal { rule, state, .. } = refusal;
        // The policy is looked up only here: keeping it ready would not pay for one line a second.
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
    /// The values of the refused key as a JSON list, so that a value cannot break the line. `None` without a key.
    fn key(&self, asked: &Asked<'_>) -> Option<String> {
        let key = &self.rule.limits.as_ref()?.key;
        let parts = key.show(&asked.request, &asked.tokens);
        (!parts.is_empty()).then(|| serde_json::to_string(&parts).expect("text always has a JSON form"))
    }
}
