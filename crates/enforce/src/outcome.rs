//! Turns the charges of a request into the headers that describe the client's quota, or into a refusal.

use std::sync::Arc;

use weir_core::{RuleCharged, RuleRefusedAt, Tightest, Time};
use weir_tower::retry_after_seconds;

use super::{
    charge::{Demand, opens_after},
    fields::{self, Fields, QuotaState},
    refusal::Refusal,
    rule::Limits,
    shared::SharedDemand,
};

/// Counts a refusal, also for the rule's ban, and builds it. `at` is the time of the decision.
pub(super) fn refusal<'r>(
    demands: &[Demand<'r, '_>],
    RuleRefusedAt { index, refused }: RuleRefusedAt,
    at: Time,
) -> Refusal<'r> {
    let retry_after = match demands {
        // With one limit, the wait of that limit is the result.
        [only] if only.limits.is_single() => refused.retry_after(),
        _ => opens_after(demands, at),
    };
    let Demand { rule, key, .. } = demands[index];
    rule.counters.count_limited();
    let state = QuotaState {
        limit: refused.limit,
        requests: refused.standing.quota().requests(),
        remaining: 0,
        // If a limit never admits the request, no time is right. The headers that describe the quota show a second.
        seconds: retry_after_seconds(retry_after.unwrap_or_default()),
    };
    let override_index = refused.override_index;
    let headers = Vec::new();
    Refusal { rule, state, override_index, retry_after, is_banned: false, at, headers }.counted_for_ban(key)
}

/// Returns the headers for a request that was charged to one rule.
pub(super) fn fields_of_one(limits: &Limits, tightest: &Tightest) -> Fields {
    if !(limits.advice.describes_admitted() || limits.advice.has_own()) {
        return Fields::default();
    }
    Fields::of_one(&limits.advice, quota_state(tightest, tightest.standing.remaining()), tightest.override_index)
}

/// Returns the headers for a request that shared rules, and possibly rules of scope Pod, admitted.
pub(super) fn fields_with_shared(
    demands: &[Demand<'_, '_>],
    charged: &[RuleCharged],
    shared: &[(&SharedDemand, QuotaState)],
) -> Fields {
    let own = demands.iter().zip(charged).map(|(demand, one)| {
        let state = quota_state(&one.tightest, one.tightest.standing.remaining());
        (&demand.limits.advice, state, one.tightest.override_index)
    });
    let shared = shared.iter().map(|(demand, state)| (&demand.limits().advice, *state, demand.override_index()));
    let all: Vec<_> = own.chain(shared).collect();
    if let [(advice, state, override_index)] = &all[..] {
        return Fields::of_one(advice, *state, *override_index);
    }
    let telling: Vec<_> = all.iter().filter(|(advice, ..)| advice.describes_admitted()).collect();
    let fields = match &telling[..] {
        [] => Fields::default(),
        [(first, state, _), rest @ ..] => {
            let tightest = rest.iter().fold((*first, *state), |tightest, (advice, state, _)| {
                if state.remaining < tightest.1.remaining { (*advice, *state) } else { tightest }
            });
            let policies = telling.iter().map(|(advice, _, override_index)| advice.policy(*override_index));
            Fields::of_several(tightest.0, tightest.1, fields::join(policies))
        }
    };
    fields.with_own(all.iter().map(|(advice, state, _)| (Arc::clone(advice), *state)))
}

/// Returns the headers for a request that was charged to several rules. They list the limits of all rules, and the
/// state of the limit with the fewest remaining requests.
pub(super) fn fields_of_several(demands: &[Demand<'_, '_>], charged: &[RuleCharged]) -> Fields {
    let telling = || demands.iter().zip(charged).filter(|(demand, _)| demand.limits.advice.describes_admitted());
    let own = || {
        let own = demands.iter().zip(charged).filter(|(demand, _)| demand.limits.advice.has_own());
        own.map(|(demand, one)| {
            (Arc::clone(&demand.limits.advice), quota_state(&one.tightest, one.tightest.standing.remaining()))
        })
    };
    let places = telling().map(|(demand, one)| (demand.limits, &one.tightest, one.tightest.standing.remaining()));
    let Some((limits, tightest, remaining)) = places.min_by_key(|(_, _, remaining)| *remaining) else {
        return Fields::default().with_own(own());
    };
    let policies = telling().map(|(demand, one)| demand.limits.advice.policy(one.tightest.override_index));
    Fields::of_several(&limits.advice, quota_state(tightest, remaining), fields::join(policies)).with_own(own())
}

pub(super) fn quota_state(tightest: &Tightest, remaining: u64) -> QuotaState {
    QuotaState {
        limit: tightest.limit,
        requests: tightest.standing.quota().requests(),
        remaining,
        seconds: retry_after_seconds(tightest.standing.reset_after()),
    }
}
