//! Logs some of the refusals of each rule: the first one, then at most one per second, with the number of refusals
//! between them. A line names the limit, but contains no part of the request. Keys can be secrets of clients, so a line
//! contains the key only if the option `log_keys` is set.

use std::sync::Arc;

use super::{
    decide::{RequestContext, refusal::Refusal},
    in_force::RulesInForce,
};

impl RulesInForce {
    /// Logs a refusal, unless the rule logged another one less than a second before. `keys` determines whether the line
    /// contains the key.
    #[inline]
    pub(super) fn log(&self, refusal: &Refusal<'_>, context: &RequestContext<'_>, keys: bool) {
        if let Some(unlogged) = refusal.rule.statistics.log_limited(refusal.at) {
            self.write_line(refusal, context, keys, unlogged);
        }
    }

    #[cold]
    fn write_line(&self, refusal: &Refusal<'_>, context: &RequestContext<'_>, keys: bool, unlogged: u64) {
        let Refusal { rule, state, .. } = refusal;
        // The policy is searched for each line, because there is at most one line per second.
        let Some((index, policy)) = self
            .policies()
            .iter()
            .enumerate()
            .find(|(_, policy)| policy.rules.iter().any(|one| Arc::ptr_eq(one, rule)))
        else {
            return;
        };
        let rules = self.snapshot().map_or(&[][..], |(snapshot, _)| &snapshot.policies[index].rules);
        let rate = rules.iter().find(|one| one.name == rule.name).and_then(|rule| rule.limits.get(state.limit));
        let concurrent = rule.concurrency().map(|concurrency| &*concurrency.name);
        tracing::info!(
            namespace = policy.namespace,
            policy = policy.name,
            rule = rule.name,
            limit = rate.map(|limit| limit.name.as_str()).or(concurrent),
            key = keys.then(|| refusal.key(context)).flatten().map(tracing::field::display),
            retry_after_seconds = state.seconds,
            banned = refusal.is_banned,
            unlogged,
            "refused"
        );
    }
}

impl Refusal<'_> {
    /// Returns the values of the refused key as a JSON list, so that no value can break the line. Returns `None` if the
    /// rule has no key.
    fn key(&self, context: &RequestContext<'_>) -> Option<String> {
        let key = self.rule.key()?;
        let parts = key.show(&context.request, &context.tokens);
        (!parts.is_empty()).then(|| serde_json::to_string(&parts).expect("a list of strings is valid JSON"))
    }
}
