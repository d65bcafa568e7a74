//! Turns the charges of a request into the headers that describe the client's quota, or into a refusal.

use std::{sync::Arc, time::Duration};

use weir_core::{MAX_LIMITS, RuleCharged, RuleRefused, RuleRefusedAt, Tightest, Time};
use weir_tower::retry_after_seconds;

use crate::{
    decide::{
        charge::{Demand, opens_after},
        refusal::Refusal,
        shared::SharedDemand,
    },
    quota_headers::{self, Fields, QuotaState},
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
    (state, override_index): (QuotaState, Option<usize>),
    retry_after: Option<Duration>,
    at: Time,
) -> Refusal<'r> {
    let Demand { rule, key, counts_for_ban, .. } = *demand;
    rule.statistics.count_limited();
    let headers = Vec::new();
    let refusal = Refusal { rule, state, override_index, retry_after, is_banned: false, at, headers };
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

/// Returns the headers for a request that shared rules, and possibly rules of scope Pod, admitted.
pub(crate) fn fields_with_shared(
    demands: &[Demand<'_, '_>],
    charged: &[RuleCharged],
    shared: &[(&SharedDemand, QuotaState)],
) -> Fields {
    let own = demands.iter().zip(charged).map(|(demand, one)| {
        let state = quota_state(&one.tightest, one.tightest.standing.remaining());
        (&demand.limits.quota_headers, state, one.tightest.override_index)
    });
    let shared = shared.iter().map(|(demand, state)| (&demand.limits().quota_headers, *state, demand.override_index()));
    let all: Vec<_> = own.chain(shared).collect();
    if let [(quota_headers, state, override_index)] = &all[..] {
        return Fields::of_one(quota_headers, *state, *override_index);
    }
    let telling: Vec<_> = all.iter().filter(|(quota_headers, ..)| quota_headers.describes_admitted()).collect();
    let fields = match &telling[..] {
        [] => Fields::default(),
        [(first, state, _), rest @ ..] => {
            let tightest = rest.iter().fold((*first, *state), |tightest, (quota_headers, state, _)| {
                if state.remaining < tightest.1.remaining { (*quota_headers, *state) } else { tightest }
            });
            let policies =
                telling.iter().map(|(quota_headers, _, override_index)| quota_headers.policy(*override_index));
            Fields::of_several(tightest.0, tightest.1, quota_headers::join(policies))
        }
    };
    fields.with_own(all.iter().map(|(quota_headers, state, _)| (Arc::clone(quota_headers), *state)))
}

/// Returns the headers for a request that was charged to several rules. They list the limits of all rules, and the
/// state of the limit with the fewest remaining requests.
pub(crate) fn fields_of_several(demands: &[Demand<'_, '_>], charged: &[RuleCharged]) -> Fields {
    let telling = || demands.iter().zip(charged).filter(|(demand, _)| demand.limits.quota_headers.describes_admitted());
    let own = || {
        let own = demands.iter().zip(charged).filter(|(demand, _)| demand.limits.quota_headers.has_own());
        own.map(|(demand, one)| {
            (Arc::clone(&demand.limits.quota_headers), quota_state(&one.tightest, one.tightest.standing.remaining()))
        })
    };
    let places = telling().map(|(demand, one)| (demand.limits, &one.tightest, one.tightest.standing.remaining()));
    let Some((limits, tightest, remaining)) = places.min_by_key(|(_, _, remaining)| *remaining) else {
        return Fields::default().with_own(own());
    };
    let policies = telling().map(|(demand, one)| demand.limits.quota_headers.policy(one.tightest.override_index));
    Fields::of_several(&limits.quota_headers, quota_state(tightest, remaining), quota_headers::join(policies))
        .with_own(own())
}

pub(crate) fn quota_state(tightest: &Tightest, remaining: u64) -> QuotaState {
    QuotaState {
        limit: tightest.limit,
        requests: tightest.standing.quota().requests(),
        remaining,
        seconds: retry_after_seconds(tightest.standing.reset_after()),
    }
}
