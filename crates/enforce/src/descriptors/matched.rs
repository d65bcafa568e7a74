//! One rule that matches a descriptor: what it charges, and the state of its limits.

use std::{sync::Arc, time::Duration};

use weir_core::{Quota, Time};
use weir_tower::MonotonicClock;

use super::{
    super::{
        decide::{
            charge::Demand,
            outcome::refusal,
            refusal::Refusal,
            shared::{SharedDemand, refuse_banned_key},
        },
        rule::{Limits, Rule},
    },
    LimitState,
};

/// A rule that matches a descriptor.
#[derive(Debug)]
pub(super) struct Matched {
    /// The index of the descriptor.
    pub(super) descriptor: usize,
    pub(super) rule: Arc<Rule>,
    pub(super) key: Box<[u8]>,
    pub(super) hits: u64,
    /// Whether the rule gets the units back.
    pub(super) is_credit: bool,
    pub(super) is_quota: bool,
    /// Whether the rule is in shadow mode. The list contains such a rule only to give units back to it.
    pub(super) is_shadow: bool,
}

impl Matched {
    pub(super) fn demand(&self) -> Demand<'_, '_> {
        let cost = if self.is_credit { 1 } else { self.hits.max(1) };
        let demand = Demand::new(&self.rule, self.rule.charged_rates(), &self.key, cost);
        Demand { counts_for_ban: !self.is_quota, ..demand }
    }

    /// Gives the units back to the limits.
    pub(super) fn credit(&self, clock: MonotonicClock) {
        if self.hits == 0 {
            return;
        }
        let demand = self.demand();
        match SharedDemand::of(&demand, clock.now()) {
            Some(shared) => shared.credit(self.hits),
            None => demand.limits.pod_limiter().credit(demand.key, self.hits, || clock.now()),
        }
    }

    /// Returns the refusal of a banned key, or of a check that charges nothing.
    pub(super) fn refuse_unasked(&self, now: Time) -> Option<Refusal<'_>> {
        let demand = self.demand();
        let Demand { rule, limits, key, cost, .. } = demand;
        let rest = if self.hits > 0 { limits.ban_rest(key, now) } else { limits.known_ban(key, now) };
        if let Some(rest) = rest {
            return Some(refuse_banned_key((rule, limits), (key, cost), rest, now));
        }
        if self.hits > 0 {
            return None;
        }
        if let Some(shared) = SharedDemand::of(&demand, now) {
            // A check takes no seats. It is answered from what the store reported last.
            let known = shared.known();
            let refused = weir_store::Refused::new(known.refused_for, known.left);
            return known.is_refused().then(|| shared.refusal_by(rule, refused, now));
        }
        let refused = limits.pod_limiter().peek(now, key, cost).err()?;
        Some(refusal(&[demand], weir_core::RuleRefusedAt { index: 0, refused }, now))
    }

    /// Returns the state of the tightest limit for the key, and whether the rule now refuses these units in addition to
    /// `earlier` ones. A banned key has nothing left until the ban ends and the limits admit it. The answer to a
    /// descriptor that gives units back does not depend on bans.
    pub(super) fn state(&self, now: Time, earlier: u64) -> Option<(bool, LimitState)> {
        let demand = self.demand();
        let (is_refused, limit) = Self::state_of_limits(demand, now, earlier)?;
        let rest = if self.is_credit { None } else { demand.limits.known_ban(demand.key, now) };
        let Some(rest) = rest else { return Some((is_refused, limit)) };
        let reset_after = if is_refused { limit.reset_after.max(rest) } else { rest };
        Some((true, LimitState { remaining: 0, reset_after, ..limit }))
    }

    fn state_of_limits(demand: Demand<'_, '_>, now: Time, earlier: u64) -> Option<(bool, LimitState)> {
        let Demand { limits, key, cost, .. } = demand;
        if let Some(shared) = SharedDemand::of(&demand, now) {
            let known = shared.known();
            let left = known.left;
            let index = left.map_or(0, |left| left.limit);
            let quota = limits.quota(index, shared.override_index())?;
            let remaining = left.map_or(0, |left| left.units).saturating_add(known.seats.into());
            let full_in = left.map_or(Duration::ZERO, |left| left.full_in);
            let reset_after = known.refused_for.unwrap_or(full_in);
            return Some((known.is_refused(), limit_state(limits, index, quota, remaining, reset_after)));
        }
        let (is_refused, index, standing, reset_after) =
            match limits.pod_limiter().peek(now, key, cost.saturating_add(earlier)) {
                Ok(tightest) => (false, tightest.limit, tightest.standing, tightest.standing.reset_after()),
                Err(refused) => {
                    // A request for more than the limit ever admits has no time at which it would be admitted.
                    let reset_after = refused.retry_after().unwrap_or_else(|| refused.standing.reset_after());
                    (true, refused.limit, refused.standing, reset_after)
                }
            };
        let remaining = standing.remaining();
        Some((is_refused, limit_state(limits, index, standing.quota(), remaining, reset_after)))
    }
}

/// During a change, a request can use the old rules with limits that are already retuned, so the index can be out of
/// range.
fn limit_state(limits: &Limits, index: usize, quota: Quota, remaining: u64, reset_after: Duration) -> LimitState {
    let name = limits.full_names.get(index).cloned().unwrap_or_default();
    let capacity = quota.burst().saturating_add(quota.debt());
    LimitState { name, requests: quota.requests(), period: quota.period(), capacity, remaining, reset_after }
}
