//! Decides on requests whose body has arrived with the head, in a set with rules that count the bytes of bodies.
//!
//! The whole body is charged at once. If the limits have no room for it now, the body must pass in pieces, and nothing
//! is charged here.

use super::{Asked, Entry, RuleSet, charge_all, enter, fields_of_several, limiting, refusal};
use crate::{
    charge::Ask,
    cost::Cost,
    deferred::DeferredCost,
    follow_up::{Deadline, FollowUp},
    refusal::Refusal,
    verdict::{Pass, Verdict},
};

impl Asked<'_> {
    /// Decides as [`enforce`](Self::enforce) does, and charges the bytes of the body. Returns `None`, and charges and
    /// counts nothing, if the request or its body must wait.
    pub(super) fn enforce_with_body<'r>(
        &self,
        set: &'r RuleSet,
        indices: &[usize],
        keys: &mut Vec<u8>,
        body: usize,
    ) -> Option<Verdict<'r>> {
        let members = || indices.iter().map(|index| set.get(*index));
        if members().all(|member| !member.counts_body) {
            return Some(self.enforce(set, indices, keys));
        }
        let permits = match self.acquire_permits(members(), keys) {
            Ok(permits) => permits,
            Err((rule, none)) => return Some(Verdict::Refuse(Refusal::without_permit(rule, &none, self.now()))),
        };
        let (rules, deadline) = (limiting(set, indices), self.deadline(members()));
        let mut verdict = self.with_asks(&rules, deadline.as_ref().map(Deadline::after), keys, |asks| {
            let charged = match enter(asks, self.clock) {
                Ok(Entry::Goes(charged)) => charged,
                Ok(Entry::Waits(_)) => return None,
                Err(refused) => return Some(Verdict::Refuse(refusal(asks, refused, self.now()))),
            };
            if !self.charge_body(asks, rest_of(body)) {
                for (ask, one) in asks.iter().zip(charged) {
                    ask.limits.limiter.refund(ask.key, one.charge, || self.now());
                }
                return None;
            }
            asks.iter().for_each(|ask| ask.rule.counters.count_allowed());
            let fields = fields_of_several(asks, &charged);
            let costs = asks.iter().filter_map(|ask| DeferredCost::of(ask, true));
            let costs = costs.filter(|cost| !cost.is_request_bytes()).collect();
            Some(Verdict::Pass(Pass { fields, follow_up: FollowUp { deadline, costs, permits: Vec::new() }.boxed() }))
        })?;
        if !permits.is_empty() {
            verdict.hold_permits(permits);
        }
        Some(verdict)
    }

    /// Charges the rest of the body to all rules that count it, or to none of them. Bodies that wait go first.
    fn charge_body(&self, asks: &[Ask<'_, '_>], rest: u64) -> bool {
        if rest == 0 {
            return true;
        }
        let counting = asks.iter().filter(|ask| ask.limits.cost == Cost::RequestBytes);
        let asks: Vec<_> = counting.map(|ask| Ask { cost: rest, latest: None, ..*ask }).collect();
        asks.iter().all(|ask| ask.limits.limiter.queue_len(ask.key) == 0) && charge_all(&asks, || self.now()).is_ok()
    }

    /// Charges the rest of the body to the rules in shadow mode, which delay no body.
    pub(super) fn charge_shadows(&self, verdict: &mut Verdict<'_>, body: usize) {
        if let Verdict::Pass(Pass { follow_up: Some(follow_up), .. }) = verdict {
            let costs = follow_up.take_request_bytes();
            costs.iter().for_each(|cost| cost.charge(rest_of(body), self.clock));
        }
    }
}

/// The bytes of a body that were not charged on arrival: the first byte was.
fn rest_of(body: usize) -> u64 {
    u64::try_from(body).unwrap_or(u64::MAX).saturating_sub(1)
}
