//! Charges several rules for one request, each with its own cost: all of them, or none. A single rule without waits and
//! deadlines is charged in [`decide`](crate::decide).
//!
//! The waits of requests are in [`wait`](crate::decide::wait). A rule in shadow mode delays no request: a rule that would let
//! a request wait is charged for the time at which it would admit the request.

use std::{ops::Range, sync::Arc, time::Duration};

use weir_core::{MAX_LIMITS, RuleCharged, RuleRefusedAt, Time};

use crate::{
    quota_headers::Unit,
    rule::{Limits, Rule},
};

/// The charge that a request needs from one rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand<'r, 'k> {
    pub(crate) rule: &'r Arc<Rule>,
    pub(crate) limits: &'r Limits,
    pub(crate) key: &'k [u8],
    pub(crate) cost: u64,
    /// The latest time at which the request may be admitted. `None` if it may not wait.
    pub(crate) latest: Option<Time>,
    /// Whether a refusal counts for the rule's ban.
    pub(crate) counts_for_ban: bool,
}

impl<'r, 'k> Demand<'r, 'k> {
    /// The charge of a request that may not wait.
    pub(crate) fn new(rule: &'r Arc<Rule>, limits: &'r Limits, key: &'k [u8], cost: u64) -> Self {
        Self { rule, limits, key, cost, latest: None, counts_for_ban: true }
    }
}

impl Demand<'_, '_> {
    /// Counts a refusal by a rule in shadow mode, also for the rule's ban.
    pub(crate) fn count_shadow_limited(&self, at: Time) {
        self.rule.statistics.shadow_limited.count();
        self.limits.count_for_ban(self.key, at, self.rule);
    }

    fn for_limiter(&self) -> weir_core::Demand<'_> {
        weir_core::Demand { rule: self.limits.pod_limiter(), key: self.key, cost: self.cost, latest: self.latest }
    }
}

/// Charges every rule, or none.
pub(crate) fn charge_rules(
    demands: &[Demand<'_, '_>],
    clock: impl Fn() -> Time,
) -> Result<Vec<RuleCharged>, RuleRefusedAt> {
    let mut charged = Vec::with_capacity(demands.len());
    weir_core::charge_rules(demands.iter().map(Demand::for_limiter), clock, &mut charged)?;
    Ok(charged)
}

/// Returns the time until all limits of all rules admit this request, after the requests that already wait. A client
/// that retries after this time is not refused by another limit. A limit that admits now also admits later, so each
/// limit must be checked only once. Several descriptors can charge the same key of a rule, which must admit them together.
/// `None` if one of the limits never admits the request.
pub(crate) fn opens_after(demands: &[Demand<'_, '_>], now: Time) -> Option<Duration> {
    let mut at = now;
    for (index, demand) in demands.iter().enumerate() {
        let charges = demands[..=index].iter().filter(|it| Arc::ptr_eq(it.rule, demand.rule) && it.key == demand.key);
        let cost = charges.fold(0, |cost: u64, charge| cost.saturating_add(charge.cost));
        // In the queue of another rule are only requests that it refused at their turn, and possibly this one.
        let has_waiting = demand.limits.is_patient() || demand.limits.cost.unit() == Unit::Bytes;
        if has_waiting
            && demand.limits.pod_limiter().queue_len(demand.key) > 0
            && let Ok(opens) = demand.limits.pod_limiter().opens(now, demand.key, cost)
        {
            at = at.max(opens);
        }
        for _ in 0..MAX_LIMITS {
            match demand.limits.pod_limiter().peek(at, demand.key, cost).map_err(|refused| refused.retry_after()) {
                Err(Some(wait)) => at = at.saturating_add(wait),
                Err(None) => return None,
                Ok(_) => break,
            }
        }
    }
    Some(at.duration_since(now))
}

/// Returns the keys of several rules. `keys` contains them one after the other.
pub(crate) fn slices<'a>(keys: &'a [u8], ranges: &[Range<usize>]) -> Vec<&'a [u8]> {
    ranges.iter().map(|range| &keys[range.clone()]).collect()
}
