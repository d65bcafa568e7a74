//! Decides on requests that match rules counted by a store.

use std::future::poll_fn;

use weir_core::RuleRefusedAt;
use weir_store::{Claim, Grant, Refused};

use super::{Member, RequestContext, shadow_costs};
use crate::decide::{
    charge::{Demand, charge_rules, opens_after},
    deferred::{DeferredCost, Shadow},
    follow_up::FollowUp,
    outcome::{admit, final_refusal, refusal, settle},
    refusal::Refusal,
    shared::{SharedDemand, claim_all, refused_for, split},
    verdict::{Pass, Verdict},
    wait::{Entered, Wait, enter},
};

impl RequestContext<'_> {
    /// Decides on a request of one shared rule. Returns `None` if the store must be asked.
    pub(super) fn claim_one<'r>(&self, member: &'r Member, keys: &mut Vec<u8>) -> Option<Verdict<'r>> {
        let rule = &member.rule;
        let limits = rule.rates()?;
        keys.clear();
        limits.key.write(&self.request, &self.tokens, keys);
        let cost = limits.cost.on_arrival(&self.request);
        let demand = Demand::new(rule, limits, keys, cost);
        let shared = SharedDemand::of(&demand, self.now())?;
        match shared.claim() {
            Claim::Granted(grant) => {
                let fields = admit(&[], Vec::new(), &mut vec![(shared, grant)], (&[], self.clock));
                Some(Verdict::Pass(Pass { fields, follow_up: None }))
            }
            Claim::Refused(refused) => Some(Verdict::Refuse(refusal_of(&shared, &[demand], refused, self))),
            Claim::AskStore => None,
        }
    }

    pub(crate) fn enforce_with_stores<'r>(&self, demands: &[Demand<'r, '_>], follow_up: FollowUp) -> Verdict<'r> {
        let now = self.now();
        let (shared, others) = split(demands, now);
        if let Some(never) = shared.iter().find(|demand| demand.never_admitted_by().is_some()) {
            return Verdict::Refuse(refusal_of(never, demands, Refused::new(None, None), self));
        }
        // If a rule of scope Pod refuses now, no question to the store is needed.
        for (index, demand) in others.iter().enumerate().filter(|(_, demand)| demand.latest.is_none()) {
            if let Err(refused) = demand.limits.pod_limiter().peek(now, demand.key, demand.cost) {
                let refusal = refusal(&others, RuleRefusedAt { index, refused }, now);
                return Verdict::Refuse(refusal.not_before(refused_for(&shared)));
            }
        }
        let grants = match claim_all(&shared) {
            Ok(grants) => grants,
            Err((index, refused)) => {
                if let Some(refusal) = final_refusal(&others, now) {
                    return Verdict::Refuse(refusal);
                }
                let wait = opens_after(&others, now).zip(refused_for(&shared)).map(|(one, other)| one.max(other));
                return Verdict::Refuse(refusal_of(&shared[index], demands, refused, self).not_before(wait));
            }
        };
        if grants.iter().any(Option::is_none) {
            let mut wait = Wait::for_stores(shared.into_iter().zip(grants).collect(), &others, self.clock);
            wait.follow_up = follow_up;
            return Verdict::Wait(Box::new(wait));
        }
        let mut seats: Vec<(SharedDemand, Grant)> = shared.into_iter().zip(grants.into_iter().flatten()).collect();
        match enter(&others, self.clock) {
            Ok(Entered::Waits(mut wait)) => {
                wait.keep_seats(seats);
                wait.follow_up = follow_up;
                Verdict::Wait(wait)
            }
            Ok(Entered::Goes(charged)) => {
                let fields = admit(&others, charged, &mut seats, (&follow_up.costs, self.clock));
                Verdict::Pass(Pass { fields, follow_up: follow_up.boxed() })
            }
            Err(at) => {
                drop(seats);
                Verdict::Refuse(refusal(&others, at, self.now()))
            }
        }
    }

    /// Tries the rules in shadow mode of one policy. If a store must be asked, the request and its costs are counted
    /// when it answers. Returns `None` if the rules would refuse.
    pub(super) fn try_with_stores(&self, demands: &[Demand<'_, '_>]) -> Option<Vec<DeferredCost>> {
        let (shared, others) = split(demands, self.now());
        let grants = match claim_all(&shared) {
            Ok(grants) => grants,
            Err((index, refused)) => {
                shared[index].count_shadow_limited(refused, self.now());
                return None;
            }
        };
        if grants.iter().any(Option::is_none) {
            let first = shared.first()?.clone();
            let others: Vec<_> = others.iter().map(|demand| Demand { latest: None, ..*demand }).collect();
            let mut wait = Wait::for_stores(shared.into_iter().zip(grants).collect(), &others, self.clock);
            let costs = shadow_costs(demands, || Shadow::AsksStore(0));
            wait.follow_up.costs.clone_from(&costs);
            let (asking, clock) = (costs.clone(), self.clock);
            first.spawn(async move {
                let answer = poll_fn(|context| wait.poll_turn(context)).await;
                asking.iter().for_each(|cost| cost.end_question(answer.is_ok(), clock));
                if let Err(late) = answer {
                    late.count_shadow();
                }
            });
            return Some(costs);
        }
        let mut seats: Vec<(SharedDemand, Grant)> = shared.into_iter().zip(grants.into_iter().flatten()).collect();
        match charge_rules(&others, || self.now()) {
            Ok(charged) => {
                others.iter().for_each(|demand| demand.rule.statistics.allowed.count());
                let costs = shadow_costs(demands, || Shadow::Admits);
                DeferredCost::keep_charges(&costs, &others, charged, self.clock);
                settle(&mut seats, (&costs, self.clock));
                Some(costs)
            }
            Err(RuleRefusedAt { index, .. }) => {
                others[index].count_shadow_limited(self.now());
                None
            }
        }
    }
}

/// Counts and builds the refusal of a shared rule. The refusal borrows its rule from the rule set.
fn refusal_of<'r>(
    shared: &SharedDemand,
    demands: &[Demand<'r, '_>],
    refused: Refused,
    context: &RequestContext<'_>,
) -> Refusal<'r> {
    let rule = demands.iter().map(|demand| demand.rule).find(|rule| std::ptr::eq(&***rule, &*shared.rule));
    let rule = rule.expect("the rule of this request");
    shared.refusal_by(rule, refused, context.now())
}
