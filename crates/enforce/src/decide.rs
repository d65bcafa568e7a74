//! Decides on one request: it passes now, it waits, or one limit of one rule refuses it.
//!
//! Denials are checked first, then bypasses; both charge nothing. Then either all matching rules that enforce are
//! charged together, or none. Unless these rules refuse the request now, the rules in shadow mode are tried, for each
//! policy separately. A request that waits is tried when it arrives, even if a store or its patience refuses it later.
//! If all rules of such a policy would admit the request, they are charged. If one would refuse, its refusal is
//! counted. Rules in shadow mode never affect the verdict or a wait. Because they are tried for each policy separately,
//! a bypass in shadow mode exempts a request only from the other rules of its policy.

mod banned;
pub(crate) mod charge;
pub(crate) mod deferred;
pub(crate) mod follow_up;
pub(crate) mod header_rules;
pub(crate) mod outcome;
pub(crate) mod refusal;
pub(crate) mod shared;
pub(crate) mod verdict;
pub(crate) mod wait;
mod with_body;
mod with_permits;
mod with_stores;

use std::{
    cell::{Cell, RefCell},
    mem,
    sync::Arc,
    time::Duration,
};

use weir_core::{RuleCharged, RuleRefusedAt, Time};
use weir_tower::MonotonicClock;

use self::{
    charge::{Demand, charge_rules, slices},
    deferred::{DeferredCost, Shadow},
    follow_up::{Deadline, FollowUp, HeldPermit},
    header_rules::{HeaderRule, HeaderRules},
    outcome::{admit, fields_of_one, refusal},
    refusal::Refusal,
    verdict::{Pass, Verdict},
    wait::{Entered, enter},
};
use super::{
    format::Format,
    in_force::RulesInForce,
    jwt::Tokens,
    rule::{Limits, Rule},
    rule_set::{MatchBuffers, Member, RuleSet, Steps},
};
use crate::matching::RequestView;

/// A request with the data that rules need to decide on it.
pub(super) struct RequestContext<'a> {
    pub(super) request: RequestView<'a>,
    pub(super) tokens: Tokens<'a>,
    pub(super) clock: MonotonicClock,
}

/// Buffers that the next request reuses, so that a decision about a known key does not allocate.
#[derive(Default)]
struct Scratch {
    buffers: MatchBuffers,
    keys: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl RulesInForce {
    pub(super) fn decide(&self, context: &RequestContext<'_>) -> Verdict<'_> {
        let set = &*self.requests;
        SCRATCH.with_borrow_mut(|Scratch { buffers, keys }| {
            let (enforced, shadows) = set.deciding(&context.request, buffers, &self.unmatched);
            let mut verdict = match context.refuse_banned(set, enforced, keys) {
                Some(refusal) => Verdict::Refuse(refusal),
                None => context.enforce(set, enforced, keys),
            };
            context.try_shadows(set, shadows, keys, &mut verdict);
            context.add_headers(set, enforced, &mut verdict);
            verdict
        })
    }

    /// Decides on a request that passes or is refused now, without a question to a store and without a count of the
    /// response's body. `body` is the length of the request's body, which has arrived as a whole. `then` gets a
    /// reference to the verdict, which avoids a copy. For any other request, returns `None`, and charges and counts
    /// nothing.
    #[inline]
    pub(super) fn decide_at_once<R>(
        &self,
        context: &RequestContext<'_>,
        body: usize,
        then: impl FnOnce(Result<Pass, &Refusal<'_>>) -> R,
    ) -> Option<R> {
        let set = &*self.requests;
        SCRATCH.with_borrow_mut(|Scratch { buffers, keys }| {
            let (enforced, shadows) = set.deciding(&context.request, buffers, &self.unmatched);
            let mut deciding = enforced.iter().chain(shadows).map(|index| set.get(*index));
            let mut verdict = match (context.refuse_banned(set, enforced, keys), enforced, shadows) {
                (Some(refusal), ..) => Verdict::Refuse(refusal),
                // The only rule is counted by a store. This program has seats for the key, or the store refuses the
                // key.
                (None, [only], []) if set.get(*only).steps == Steps::OnlyStore => {
                    context.claim_one(set.get(*only), keys)?
                }
                _ if deciding.any(|member| matches!(member.steps, Steps::OnlyStore | Steps::Full)) => return None,
                _ if set.counts_bodies => context.enforce_with_body(set, enforced, keys, body)?,
                _ => context.enforce(set, enforced, keys),
            };
            if let Verdict::Wait(_) = verdict {
                // The request leaves the queues here. The caller then calls `decide`, and the request joins them again.
                return None;
            }
            context.try_shadows(set, shadows, keys, &mut verdict);
            if set.counts_bodies {
                context.charge_shadows(&mut verdict, body);
            }
            context.add_headers(set, enforced, &mut verdict);
            match &mut verdict {
                Verdict::Pass(pass) => Some(then(Ok(mem::take(pass)))),
                Verdict::Refuse(refusal) => Some(then(Err(refusal))),
                Verdict::Wait(_) => None,
            }
        })
    }
}

impl RequestContext<'_> {
    fn enforce<'r>(&self, set: &'r RuleSet, indices: &[usize], keys: &mut Vec<u8>) -> Verdict<'r> {
        if set.has_concurrency {
            return self.enforce_with_permits(set, indices, keys);
        }
        self.enforce_rates(set, indices, keys)
    }

    fn enforce_rates<'r>(&self, set: &'r RuleSet, indices: &[usize], keys: &mut Vec<u8>) -> Verdict<'r> {
        match indices {
            [] => Verdict::Pass(Pass::default()),
            [only] => self.enforce_one(set.get(*only), keys),
            several => {
                let rules = limiting(set, several);
                let deadline = self.deadline(rules.iter().map(|(member, _)| *member));
                self.enforce_all(&rules, deadline, keys)
            }
        }
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Decides in the common case of one rule whose decision is immediate and final, without a list of rules.
    fn enforce_one<'r>(&self, member: &'r Member, keys: &mut Vec<u8>) -> Verdict<'r> {
        let rule = &member.rule;
        let Some(limits) = rule.rates() else { return Verdict::Refuse(Refusal::denied(rule, self.now())) };
        if member.steps != Steps::Charge {
            return self.enforce_all(&[(member, limits)], self.deadline([member].into_iter()), keys);
        }
        keys.clear();
        limits.key.write(&self.request, &self.tokens, keys);
        let cost = limits.cost.on_arrival(&self.request);
        // Stores the time of the decision, so that a refusal does not read the clock again.
        let at = Cell::default();
        let now = || {
            at.set(self.now());
            at.get()
        };
        match limits.pod_limiter().charge(now, keys, cost) {
            Ok(admitted) => {
                rule.statistics.allowed.count();
                let fields = fields_of_one(limits, &admitted.tightest);
                Verdict::Pass(Pass { fields, follow_up: None })
            }
            Err(refused) => {
                let demand = Demand::new(rule, limits, keys, cost);
                Verdict::Refuse(refusal(&[demand], RuleRefusedAt { index: 0, refused }, at.get()))
            }
        }
    }

    fn enforce_all<'r>(
        &self,
        rules: &[(&'r Member, &'r Limits)],
        deadline: Option<Deadline>,
        keys: &mut Vec<u8>,
    ) -> Verdict<'r> {
        self.with_demands(rules, deadline.as_ref().map(Deadline::after), keys, |demands| {
            let costs = || demands.iter().filter_map(|demand| DeferredCost::of(demand)).collect();
            let follow_up = || FollowUp { deadline, costs: costs(), permits: Vec::new() };
            if demands.iter().any(|demand| demand.limits.shared.is_some()) {
                return self.enforce_with_stores(demands, follow_up());
            }
            match enter(demands, self.clock) {
                Ok(Entered::Waits(mut wait)) => {
                    wait.follow_up = follow_up();
                    Verdict::Wait(wait)
                }
                Ok(Entered::Goes(charged)) => {
                    let follow_up = follow_up();
                    let fields = admit(demands, charged, &mut Vec::new(), (&follow_up.costs, self.clock));
                    Verdict::Pass(Pass { fields, follow_up: follow_up.boxed() })
                }
                Err(refused) => Verdict::Refuse(refusal(demands, refused, self.now())),
            }
        })
    }

    /// The shortest deadline of these rules' policies.
    fn deadline<'r>(&self, members: impl Iterator<Item = &'r Member>) -> Option<Deadline> {
        let deadlines = members.filter_map(|member| Some((member.deadline.as_ref()?, &member.rule)));
        let (policy, rule) = deadlines.min_by_key(|(policy, _)| policy.after)?;
        let (policy, rule) = (Arc::clone(policy), Arc::clone(rule));
        Some(Deadline { policy, rule, format: Format::of(self.request.headers()), headers: None })
    }

    /// Adds the headers that matching rules set, for a response that the app does not create.
    #[inline]
    fn add_headers(&self, set: &RuleSet, indices: &[usize], verdict: &mut Verdict<'_>) {
        if set.sets_headers {
            self.find_headers(set, indices, verdict);
        }
    }

    /// Returns the rules among these that set headers. `None` if there are none.
    fn header_rules<'r>(&self, rules: impl Iterator<Item = &'r Arc<Rule>>) -> Option<HeaderRules> {
        let rules = rules.filter(|rule| rule.sets_headers()).filter_map(|rule| {
            let mut key = Vec::new();
            rule.key()?.write(&self.request, &self.tokens, &mut key);
            Some(HeaderRule { rule: Arc::clone(rule), key: key.into(), cost: rule.cost()?.on_arrival(&self.request) })
        });
        HeaderRules::new(rules, self.clock)
    }

    fn find_headers(&self, set: &RuleSet, indices: &[usize], verdict: &mut Verdict<'_>) {
        let find = |indices: &[usize]| self.header_rules(indices.iter().map(|index| &set.get(*index).rule));
        match verdict {
            Verdict::Refuse(refusal) => {
                let rules = match indices {
                    // A rule that denies is the only rule of the list.
                    [_] if refusal.is_denied() => find(&set.limiting_with_headers(&self.request)),
                    [_] => None,
                    several => find(several),
                };
                if let Some(rules) = rules {
                    rules.add_to(refusal);
                }
            }
            Verdict::Wait(wait) => {
                wait.headers = find(indices);
                if let Some(deadline) = &mut wait.follow_up.deadline {
                    deadline.headers.clone_from(&wait.headers);
                }
            }
            Verdict::Pass(Pass { follow_up: Some(follow_up), .. }) => {
                if let Some(deadline) = &mut follow_up.deadline {
                    deadline.headers = find(indices);
                }
            }
            Verdict::Pass(_) => {}
        }
    }

    /// Charges the rules in shadow mode, for each policy separately, if the request is admitted or waits.
    #[inline]
    pub(super) fn try_shadows(&self, set: &RuleSet, indices: &[usize], keys: &mut Vec<u8>, verdict: &mut Verdict<'_>) {
        if let ([_, ..], Verdict::Pass(_) | Verdict::Wait(_)) = (indices, &verdict) {
            self.try_each(set, indices, keys, verdict);
        }
    }

    fn try_each(&self, set: &RuleSet, indices: &[usize], keys: &mut Vec<u8>, verdict: &mut Verdict<'_>) {
        for indices in indices.chunk_by(|one, other| set.get(*one).policy == set.get(*other).policy) {
            let rules = || indices.iter().map(|index| &set.get(*index).rule);
            let admitted = if let Some(deny) = rules().find(|rule| rule.is_deny()) {
                deny.statistics.shadow_limited.count();
                None
            } else if let Some(bypass) = rules().find(|rule| rule.is_bypass()) {
                bypass.statistics.bypassed.count();
                continue;
            } else {
                self.try_policy(set, indices, keys)
            };
            let refused = || (rules().filter_map(DeferredCost::refused_in_shadow).collect(), Vec::new());
            let (costs, permits) = admitted.unwrap_or_else(refused);
            verdict.add(costs, permits);
        }
    }

    /// Charges the rules of one policy in shadow mode. Returns `None` if one of them would refuse the request.
    fn try_policy(
        &self,
        set: &RuleSet,
        indices: &[usize],
        keys: &mut Vec<u8>,
    ) -> Option<(Vec<DeferredCost>, Vec<HeldPermit>)> {
        if self.is_banned_in_shadow(set, indices, keys) {
            return None;
        }
        let permits = self.acquire_permits(indices.iter().map(|index| set.get(*index)), keys);
        let mut permits = permits.inspect_err(|(rule, _)| rule.statistics.shadow_limited.count()).ok()?;
        let rules = limiting(set, indices);
        let deadline = rules.iter().filter_map(|(member, _)| Some(member.deadline.as_ref()?.after)).min();
        let costs = self.with_demands(&rules, deadline, keys, |demands| {
            // Requests that waited when the rule went into shadow mode keep their turns. So this request is not charged.
            let can_queue = |demand: &&Demand<'_, '_>| demand.latest.is_some() && demand.limits.shared.is_none();
            let has_queue = |demand: &&Demand<'_, '_>| demand.limits.pod_limiter().queue_len(demand.key) > 0;
            if let Some(demand) = demands.iter().filter(can_queue).find(has_queue) {
                demand.rule.statistics.shadow_limited.count();
                return None;
            }
            if demands.iter().any(|demand| demand.limits.shared.is_some()) {
                return self.try_with_stores(demands);
            }
            match charge_rules(demands, || self.now()) {
                Ok(charged) => {
                    let now = self.now();
                    for (demand, RuleCharged { at, .. }) in demands.iter().zip(&charged) {
                        demand.rule.statistics.allowed.count();
                        if let Some(at) = at {
                            demand.rule.statistics.count_wait(at.duration_since(now));
                        }
                    }
                    let costs = shadow_costs(demands, || Shadow::Admits);
                    DeferredCost::keep_charges(&costs, demands, charged, self.clock);
                    Some(costs)
                }
                Err(RuleRefusedAt { index, .. }) => {
                    demands[index].count_shadow_limited(self.now());
                    None
                }
            }
        })?;
        let admitted = permits.iter_mut().filter_map(|held| held.admitted.take());
        admitted.for_each(|admitted| admitted.rule.statistics.allowed.count());
        Some((costs, permits))
    }

    /// Computes the key, the cost and the latest time of admission for each rule.
    fn with_demands<'r, R>(
        &self,
        rules: &[(&'r Member, &'r Limits)],
        deadline: Option<Duration>,
        keys: &mut Vec<u8>,
        then: impl FnOnce(&[Demand<'r, '_>]) -> R,
    ) -> R {
        keys.clear();
        let mut ranges = Vec::with_capacity(rules.len());
        for (_, limits) in rules {
            let start = keys.len();
            limits.key.write(&self.request, &self.tokens, keys);
            ranges.push(start..keys.len());
        }
        let now = self.now();
        let demands: Vec<Demand<'_, '_>> = rules
            .iter()
            .zip(slices(keys, &ranges))
            .map(|((member, limits), key)| {
                let patience = limits.max_wait.map(|wait| deadline.map_or(wait, |deadline| wait.min(deadline)));
                let latest = patience.map(|patience| now.saturating_add(patience));
                Demand { latest, ..Demand::new(&member.rule, limits, key, limits.cost.on_arrival(&self.request)) }
            })
            .collect();
        then(&demands)
    }
}

/// The rules at these indices that have limits.
pub(super) fn limiting<'a>(set: &'a RuleSet, indices: &[usize]) -> Vec<(&'a Member, &'a Limits)> {
    let members = indices.iter().map(|index| set.get(*index));
    members.filter_map(|member| Some((member, member.rule.rates()?))).collect()
}

/// Returns the deferred costs of rules in shadow mode.
fn shadow_costs(demands: &[Demand<'_, '_>], shadow: fn() -> Shadow) -> Vec<DeferredCost> {
    demands.iter().filter_map(|demand| DeferredCost::in_shadow(demand, shadow())).collect()
}
