//! Rules that a store counts, and the seats that a request takes from them.
//!
//! A request is charged to all its rules of both scopes, or to none. The request first takes the seats of its shared
//! rules. Then the rules of scope Pod are charged. If they refuse the request, other requests get the seats.

use std::{sync::Arc, time::Duration};

use weir_core::Time;
use weir_store::{Claim, Denied, Grant, Known, Left, Waits};
use weir_tower::retry_after_seconds;

use super::{
    charge::Demand,
    fields::QuotaState,
    lower::hash,
    refusal::Refusal,
    rule::{Limits, Rule, SharedPart},
};

/// The time until a retry if the store reported none.
const SOON: Duration = Duration::from_secs(1);

/// The charge that a request needs from one shared rule.
#[derive(Clone, Debug)]
pub(super) struct SharedDemand {
    pub(super) rule: Arc<Rule>,
    hash: u128,
    override_index: Option<usize>,
    cost: u32,
    patience: Duration,
}

/// Splits the charges of a request into charges of shared rules and charges of rules of scope Pod.
pub(super) fn split<'r, 'k>(demands: &[Demand<'r, 'k>], now: Time) -> (Vec<SharedDemand>, Vec<Demand<'r, 'k>>) {
    let shared = demands.iter().filter_map(|demand| {
        let SharedPart { terms, .. } = demand.limits.shared.as_ref()?;
        Some(SharedDemand {
            rule: Arc::clone(demand.rule),
            hash: hash(demand.key),
            override_index: terms.override_of(demand.key),
            cost: u32::try_from(demand.cost).unwrap_or(u32::MAX),
            patience: demand.latest.map_or(Duration::ZERO, |latest| latest.duration_since(now)),
        })
    });
    let others = demands.iter().filter(|demand| demand.limits.shared.is_none()).copied();
    (shared.collect(), others.collect())
}

/// Takes the seats of all rules that have enough seats, or no seats if one rule refuses. `None` means that the store of
/// that rule must be asked.
pub(super) fn claim_all(demands: &[SharedDemand]) -> Result<Vec<Option<Grant>>, (usize, Denied)> {
    let mut grants = Vec::with_capacity(demands.len());
    for (index, demand) in demands.iter().enumerate() {
        match demand.claim() {
            Claim::Granted(grant) => grants.push(Some(grant)),
            Claim::AskStore => grants.push(None),
            Claim::Denied(denied) => return Err((index, denied)),
        }
    }
    Ok(grants)
}

impl SharedDemand {
    pub(super) fn limits(&self) -> &Limits {
        self.rule.limits.as_ref().expect("a shared rule has limits")
    }

    fn part(&self) -> &SharedPart {
        self.limits().shared.as_ref().expect("the rule is shared")
    }

    fn set(&self) -> usize {
        self.override_index.map_or(0, |index| index + 1)
    }

    pub(super) fn claim(&self) -> Claim {
        self.part().limiter.claim(self.hash, self.set(), self.cost, self.patience)
    }

    /// Asks the store.
    pub(super) fn ask(&self) -> Waits {
        self.part().limiter.ask(self.hash, self.set(), self.cost, self.patience)
    }

    /// Returns the data of this program about the key.
    pub(super) fn known(&self) -> Known {
        self.part().limiter.known(self.hash, self.set(), self.cost)
    }

    /// Returns the name of the store.
    pub(super) fn store(&self) -> &str {
        self.part().limiter.client().name()
    }

    /// Runs a task on the runtime of the store client.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.part().limiter.spawn(task);
    }

    pub(super) fn override_index(&self) -> Option<usize> {
        self.override_index
    }

    /// Returns the state of the tightest limit, if the store reported it; otherwise zeros.
    pub(super) fn state(&self, left: Option<Left>) -> QuotaState {
        let limit = left.map_or(0, |left| left.limit);
        let requests = self.limits().quota(limit, self.override_index).map_or(0, |quota| quota.requests());
        let seconds = retry_after_seconds(left.map_or(Duration::ZERO, |left| left.full_in));
        QuotaState { limit, requests, remaining: left.map_or(0, |left| left.units), seconds }
    }

    /// Counts a refusal and builds it.
    pub(super) fn refusal(&self, denied: Denied, at: Time) -> Refusal<'_> {
        self.rule.counters.count_limited();
        refusal_of(&self.rule, self.state(denied.left), self.override_index, denied.retry_after, at)
    }
}

/// Builds the refusal of a shared rule.
pub(super) fn refusal_of(
    rule: &Arc<Rule>,
    state: QuotaState,
    override_index: Option<usize>,
    retry_after: Option<Duration>,
    at: Time,
) -> Refusal<'_> {
    let seconds = retry_after_seconds(retry_after.unwrap_or(SOON));
    let state = QuotaState { remaining: 0, seconds, ..state };
    Refusal { rule, state, override_index, retry_after, at }
}
