//! Turns the charges of a request into the headers that describe the client's quota, or into a refusal.

use std::{sync::Arc, time::Duration};

use weir_core::{MAX_LIMITS, RuleCharged, RuleRefused, RuleRefusedAt, Tightest, Time};
use weir_store::Grant;
use weir_tower::{MonotonicClock, retry_after_seconds};

use crate::{
    decide::{
        charge::{Demand, opens_after},
        deferred::{DeferredCost, Unit},
        refusal::Refusal,
        shared::SharedDemand,
    },
    quota_headers::{self, Fields, QuotaHeaders, QuotaState},
    rule::Limits,
};

/// Counts a refusal, also for the rule's ban, and builds it. `at` is the time of the decision. If one of the rules never
/// admits the request, the refusal is by that rule, because a client must not wait for another one.
pub(crate) fn refusal<'r>(
    demands: &[Demand<'r, '_>],
    RuleRefusedAt { index, refused }: RuleRefusedAt,
    at: Time,
) -> Refusal<'r> {
    let retry_after = match demands {
        // With one limit, the wait of that limit is the result.
        [only] if only.limits.is_single() => refused.retry_after(),
        _ => opens_after(demands, at),
    };
    let last = if retry_after.is_none() { final_refusal(demands, at) } else { None };
    last.unwrap_or_else(|| {
        let state = (refused_state(&refused, retry_after), refused.override_index);
        refusal_by(&demands[index], state, retry_after, at)
    })
}

/// Counts and builds the refusal by the first rule that never admits the request. It names the limit that never does.
/// `None` if all rules admit the request at some time.
pub(crate) fn final_refusal<'r>(demands: &[Demand<'r, '_>], at: Time) -> Option<Refusal<'r>> {
    demands.iter().find_map(|demand| {
        // Requests that wait go first, so they leave nothing.
        let is_free = demand.limits.pod_limiter().queue_len(demand.key) == 0;
        let (mut opens, mut remaining) = (at, if is_free { u64::MAX } else { 0 });
        for _ in 0..MAX_LIMITS {
            let refused = demand.limits.pod_limiter().peek(opens, demand.key, demand.cost).err()?;
            remaining = remaining.min(refused.standing.remaining());
            match refused.retry_after() {
                // The limits behind this one answer at a time when this one admits the request.
                Some(wait) => opens = opens.saturating_add(wait),
                None => {
                    let full_in = opens.duration_since(at).saturating_add(refused.standing.reset_after());
                    let seconds = retry_after_seconds(full_in);
                    let state = QuotaState { remaining, seconds, ..refused_state(&refused, None) };
                    return Some(refusal_by(demand, (state, refused.override_index), None, at));
                }
            }
        }
        None
    })
}

fn refusal_by<'r>(
    demand: &Demand<'r, '_>,
    state: (QuotaState, Option<usize>),
    retry_after: Option<Duration>,
    at: Time,
) -> Refusal<'r> {
    let Demand { rule, key, counts_for_ban, .. } = *demand;
    let refusal = Refusal::new(rule, state, retry_after, at);
    if counts_for_ban { refusal.counted_for_ban(key) } else { refusal }
}

/// Returns the state of the limit that refused. The seconds are those until a retry, or until full credit if no retry
/// can succeed.
pub(crate) fn refused_state(refused: &RuleRefused, retry_after: Option<Duration>) -> QuotaState {
    QuotaState {
        limit: refused.limit,
        requests: refused.standing.quota().requests(),
        remaining: refused.standing.remaining(),
        seconds: retry_after_seconds(retry_after.unwrap_or_else(|| refused.standing.reset_after())),
    }
}

/// Returns the headers for a request that was charged to one rule.
pub(crate) fn fields_of_one(limits: &Limits, tightest: &Tightest) -> Fields {
    if !(limits.quota_headers.describes_admitted() || limits.quota_headers.has_own()) {
        return Fields::default();
    }
    Fields::of_one(&limits.quota_headers, quota_state(tightest, tightest.standing.remaining()), tightest.override_index)
}

/// Counts an admitted request, uses its seats, and returns the headers for its response. A response that supplies one of
/// the costs can give the charges and the seats back.
pub(crate) fn admit(
    demands: &[Demand<'_, '_>],
    charged: Vec<RuleCharged>,
    seats: &mut Vec<(SharedDemand, Grant)>,
    (costs, clock): (&[DeferredCost], MonotonicClock),
) -> Fields {
    demands.iter().for_each(|demand| demand.rule.statistics.allowed.count());
    let shared = settle(seats, (costs, clock));
    let fields = fields_of(demands, &charged, &shared);
    DeferredCost::keep_charges(costs, demands, charged, clock);
    fields
}

/// Uses and counts the seats of an admitted request. Returns the remaining quota of their rules.
pub(crate) fn settle(
    seats: &mut Vec<(SharedDemand, Grant)>,
    (costs, clock): (&[DeferredCost], MonotonicClock),
) -> Vec<(SharedDemand, QuotaState)> {
    let settled = seats.drain(..).map(|(demand, grant)| {
        let state = demand.state(grant.left());
        DeferredCost::keep(costs, &demand.rule, Unit::Shared(grant.into_used()), clock);
        demand.rule.statistics.allowed.count();
        (demand, state)
    });
    settled.collect()
}

/// The quota that an admitted request has left in one rule. The state of a charge is computed only if it is needed.
enum Left<'a> {
    Charged(&'a Tightest),
    Shared(&'a QuotaState),
}

impl Left<'_> {
    fn remaining(&self) -> u64 {
        match self {
            Self::Charged(tightest) => tightest.standing.remaining(),
            Self::Shared(state) => state.remaining,
        }
    }

    /// Returns the state. `remaining` is the result of [`remaining`](Self::remaining).
    fn state(&self, remaining: u64) -> QuotaState {
        match self {
            Self::Charged(tightest) => quota_state(tightest, remaining),
            Self::Shared(state) => **state,
        }
    }
}

/// Returns the headers for a request that these rules have admitted.
fn fields_of(demands: &[Demand<'_, '_>], charged: &[RuleCharged], shared: &[(SharedDemand, QuotaState)]) -> Fields {
    let own = demands.iter().zip(charged).map(|(demand, RuleCharged { tightest, .. })| {
        (&demand.limits.quota_headers, tightest.override_index, Left::Charged(tightest))
    });
    // Most requests have no shared rule, and a chain of iterators costs 2 % of the instructions of their decision.
    if shared.is_empty() {
        return fields_of_rules(own);
    }
    let shared = shared
        .iter()
        .map(|(demand, state)| (&demand.limits().quota_headers, demand.override_index(), Left::Shared(state)));
    fields_of_rules(own.chain(shared))
}

/// Returns the headers for what these rules have left. They list the limits of all rules, and the state of the limit with
/// the fewest remaining requests.
fn fields_of_rules<'a>(all: impl Iterator<Item = (&'a Arc<QuotaHeaders>, Option<usize>, Left<'a>)> + Clone) -> Fields {
    let mut rules = all.clone();
    if let (Some((quota_headers, override_index, left)), None) = (rules.next(), rules.next()) {
        return Fields::of_one(quota_headers, left.state(left.remaining()), override_index);
    }
    let telling = || all.clone().filter(|(quota_headers, ..)| quota_headers.describes_admitted());
    // `remaining` divides, so it is computed once for each rule.
    let lefts = telling().map(|(quota_headers, _, left)| (left.remaining(), quota_headers, left));
    let fields = lefts.min_by_key(|(remaining, ..)| *remaining).map(|(remaining, quota_headers, left)| {
        let policies = telling().map(|(quota_headers, override_index, _)| quota_headers.policy(override_index));
        Fields::of_several(quota_headers, left.state(remaining), quota_headers::join(policies))
    });
    let own = all.filter(|(quota_headers, ..)| quota_headers.has_own());
    fields
        .unwrap_or_default()
        .with_own(own.map(|(quota_headers, _, left)| (Arc::clone(quota_headers), left.state(left.remaining()))))
}

pub(crate) fn quota_state(tightest: &Tightest, remaining: u64) -> QuotaState {
    QuotaState {
        limit: tightest.limit,
        requests: tightest.standing.quota().requests(),
        remaining,
        seconds: retry_after_seconds(tightest.standing.reset_after()),
    }
}
