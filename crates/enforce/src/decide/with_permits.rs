//! Decides on requests of rules with concurrent limits.

use std::sync::Arc;

use super::{Member, RequestContext, RuleSet, limiting};
use crate::{
    concurrency::NoPermit,
    decide::{
        follow_up::{AdmittedBy, FollowUp, HeldPermit},
        refusal::Refusal,
        verdict::{Pass, Verdict},
    },
    quota_headers::Fields,
    rule::Rule,
};

impl RequestContext<'_> {
    /// Takes the permits first, and then decides by the other rules. If they refuse, the permits are given back.
    pub(super) fn enforce_with_permits<'r>(
        &self,
        set: &'r RuleSet,
        indices: &[usize],
        keys: &mut Vec<u8>,
    ) -> Verdict<'r> {
        let members = || indices.iter().map(|index| set.get(*index));
        if members().all(|member| member.rule.concurrency().is_none()) {
            return self.enforce_rates(set, indices, keys);
        }
        let permits = match self.acquire_permits(members(), keys) {
            Ok(permits) => permits,
            Err((rule, none)) => return Verdict::Refuse(Refusal::without_permit(rule, &none, self.now())),
        };
        let (rates, deadline) = (limiting(set, indices), self.deadline(members()));
        let mut verdict = if rates.is_empty() {
            Verdict::Pass(Pass {
                fields: Fields::default(),
                follow_up: FollowUp { deadline, ..FollowUp::default() }.boxed(),
            })
        } else {
            self.enforce_all(&rates, deadline, keys)
        };
        verdict.keep_permits(permits);
        verdict
    }

    /// Takes a permit of each rule with a concurrent limit, or none if one refuses. Other rules are skipped.
    pub(super) fn acquire_permits<'r>(
        &self,
        members: impl Iterator<Item = &'r Member>,
        keys: &mut Vec<u8>,
    ) -> Result<Vec<HeldPermit>, (&'r Arc<Rule>, NoPermit)> {
        let mut permits = Vec::new();
        for rule in members.map(|member| &member.rule) {
            let Some(concurrency) = rule.concurrency() else { continue };
            keys.clear();
            concurrency.key.write(&self.request, &self.tokens, keys);
            let cost = concurrency.cost.on_arrival(&self.request);
            let (permit, state, override_index) = concurrency.acquire(keys, cost).map_err(|none| (rule, none))?;
            let admitted = AdmittedBy { rule: Arc::clone(rule), state, override_index };
            permits.push(HeldPermit { _permit: permit, admitted: Some(admitted) });
        }
        Ok(permits)
    }
}
