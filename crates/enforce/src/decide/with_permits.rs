//! Decides on requests of rules with concurrent limits.

use std::sync::Arc;

use super::{Asked, Member, RuleSet};
use crate::{
    concurrency::NoPermit,
    follow_up::{AdmittedBy, HeldPermit},
    refusal::Refusal,
    rule::Rule,
    verdict::Verdict,
};

impl Asked<'_> {
    /// Takes the permits first, and then decides by the other rules. If they refuse, the permits are given back.
    pub(super) fn enforce_with_permits<'r>(
        &self,
        set: &'r RuleSet,
        indices: &[usize],
        keys: &mut Vec<u8>,
    ) -> Verdict<'r> {
        let is_concurrent = |index: &usize| set.get(*index).rule.concurrency.is_some();
        let (concurrent, others): (Vec<usize>, Vec<usize>) = indices.iter().copied().partition(is_concurrent);
        let members = || concurrent.iter().map(|index| set.get(*index));
        let permits = match self.acquire_all(members(), keys) {
            Ok(permits) => permits,
            Err((rule, none)) => return Verdict::Refuse(Refusal::without_permit(rule, &none, self.now())),
        };
        let mut verdict = self.enforce_rates(set, &others, keys);
        if !permits.is_empty() {
            verdict.hold(permits, self.deadline(members()));
        }
        verdict
    }

    /// Takes a permit of each rule with a concurrent limit, or none if one refuses.
    pub(super) fn acquire_all<'r>(
        &self,
        members: impl Iterator<Item = &'r Member>,
        keys: &mut Vec<u8>,
    ) -> Result<Vec<HeldPermit>, (&'r Arc<Rule>, NoPermit)> {
        let mut permits = Vec::new();
        for rule in members.map(|member| &member.rule) {
            let Some(concurrency) = &rule.concurrency else { continue };
            keys.clear();
            concurrency.key.write(&self.request, &self.tokens, keys);
            let cost = concurrency.cost.on_arrival(&self.request);
            let (permit, state) = concurrency.acquire(keys, cost).map_err(|none| (rule, none))?;
            let override_index = concurrency.limits.of(keys).1;
            let admitted = AdmittedBy { rule: Arc::clone(rule), state, override_index };
            permits.push(HeldPermit { _permit: permit, admitted: Some(admitted) });
        }
        Ok(permits)
    }
}
