//! Decides on requests whose body has arrived with the head, in a set with rules that count the bytes of bodies.
//!
//! The whole body is charged at once. If the limits have no room for it now, the body must pass in pieces, and nothing
//! is charged here.

use super::{Entered, RequestContext, RuleSet, admit, charge_rules, enter, limiting, refusal};
use crate::{
    cost::Cost,
    decide::{
        charge::Demand,
        deferred::DeferredCost,
        follow_up::{Deadline, FollowUp},
        refusal::Refusal,
        verdict::{Pass, Verdict},
    },
};

impl RequestContext<'_> {
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
        let mut verdict = self.with_demands(&rules, deadline.as_ref().map(Deadline::after), keys, |demands| {
            // A charge that is given back would be lost in a log that has charged other requests in the meantime.
            if self.body_waits(demands, rest_of(body)) {
                return None;
            }
            let charged = match enter(demands, self.clock) {
                Ok(Entered::Goes(charged)) => charged,
                Ok(Entered::Waits(_)) => return None,
                Err(refused) => return Some(Verdict::Refuse(refusal(demands, refused, self.now()))),
            };
            if !self.charge_body(demands, rest_of(body)) {
                for (demand, one) in demands.iter().zip(charged) {
                    demand.limits.pod_limiter().refund(demand.key, one.charge, || self.now());
                }
                return None;
            }
            let costs = demands.iter().filter_map(DeferredCost::of);
            let costs: Vec<_> = costs.filter(|cost| !cost.is_request_bytes()).collect();
            let fields = admit(demands, charged, &mut Vec::new(), (&costs, self.clock));
            Some(Verdict::Pass(Pass { fields, follow_up: FollowUp { deadline, costs, permits: Vec::new() }.boxed() }))
        })?;
        if !permits.is_empty() {
            verdict.keep_permits(permits);
        }
        Some(verdict)
    }

    /// Whether all rules admit the request, but not its whole body now. Bodies that wait go first.
    fn body_waits(&self, demands: &[Demand<'_, '_>], rest: u64) -> bool {
        let now = self.now();
        let has_room = |it: &Demand<'_, '_>, cost| it.limits.pod_limiter().peek(now, it.key, cost).is_ok();
        let waits = |it: &Demand<'_, '_>| it.limits.pod_limiter().queue_len(it.key) > 0 || !has_room(it, 1 + rest);
        rest > 0
            && demands.iter().any(|it| it.limits.cost == Cost::RequestBytes && waits(it))
            && demands.iter().all(|it| has_room(it, it.cost))
    }

    /// Charges the rest of the body to all rules that count it, or to none of them. Bodies that wait go first.
    fn charge_body(&self, demands: &[Demand<'_, '_>], rest: u64) -> bool {
        if rest == 0 {
            return true;
        }
        let counting = demands.iter().filter(|demand| demand.limits.cost == Cost::RequestBytes);
        let demands: Vec<_> = counting.map(|demand| Demand { cost: rest, latest: None, ..*demand }).collect();
        demands.iter().all(|demand| demand.limits.pod_limiter().queue_len(demand.key) == 0)
            && charge_rules(&demands, || self.now()).is_ok()
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
