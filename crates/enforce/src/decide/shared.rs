//! Rules that a store counts, and the seats that a request takes from them.
//!
//! A request is charged to all its rules of both scopes, or to none. The request first takes the seats of its shared
//! rules. Then the rules of scope Pod are charged. If they refuse the request, other requests get the seats.

use std::{sync::Arc, time::Duration};

use weir_core::{Tightest, Time};
use weir_store::{Claim, Grant, KeyView, Left, PendingGrant, Refused};
use weir_tower::retry_after_seconds;

use crate::{
    decide::{
        charge::{Demand, opens_after},
        refusal::Refusal,
    },
    quota_headers::QuotaState,
    rule::{Limits, Rule, SharedPart},
};

/// The demand of a request on one shared rule.
#[derive(Clone, Debug)]
pub(crate) struct SharedDemand {
    pub(crate) rule: Arc<Rule>,
    /// The key, if the rule has a ban.
    key: Option<Arc<[u8]>>,
    hash: u128,
    override_index: Option<usize>,
    cost: u32,
    patience: Duration,
    counts_for_ban: bool,
}

/// Splits the demands of a request into those on shared rules and those on rules of scope Pod.
pub(crate) fn split<'r, 'k>(demands: &[Demand<'r, 'k>], now: Time) -> (Vec<SharedDemand>, Vec<Demand<'r, 'k>>) {
    let shared = demands.iter().filter_map(|demand| SharedDemand::of(demand, now));
    let others = demands.iter().filter(|demand| demand.limits.shared.is_none()).copied();
    (shared.collect(), others.collect())
}

/// Takes the seats of all rules that have enough seats, or no seats if one rule refuses. `None` means that the store of
/// that rule must be asked.
pub(crate) fn claim_all(demands: &[SharedDemand]) -> Result<Vec<Option<Grant>>, (usize, Refused)> {
    let mut grants = Vec::with_capacity(demands.len());
    for (index, demand) in demands.iter().enumerate() {
        match demand.claim() {
            Claim::Granted(grant) => grants.push(Some(grant)),
            Claim::AskStore => grants.push(None),
            Claim::Refused(refused) => return Err((index, refused)),
        }
    }
    Ok(grants)
}

/// Returns the time for which the rules refuse the request, as far as this program knows. `None` if one of the limits
/// never admits the request.
pub(crate) fn refused_for(demands: &[SharedDemand]) -> Option<Duration> {
    if demands.iter().any(|demand| demand.never_admitted_by().is_some()) {
        return None;
    }
    Some(demands.iter().filter_map(|demand| demand.known().refused_for).max().unwrap_or_default())
}

/// Counts a request whose key the rule has banned, and refuses it. The state is that of the rule's tightest limit. The
/// client may retry when the ban has ended and the rule's limits admit the request.
pub(crate) fn refuse_banned_key<'r>(
    (rule, limits): (&'r Arc<Rule>, &Limits),
    (key, cost): (&[u8], u64),
    rest: Duration,
    at: Time,
) -> Refusal<'r> {
    rule.statistics.count_banned(rule.mode);
    let demand = Demand::new(rule, limits, key, cost);
    let (limit, override_index, retry_after) = match SharedDemand::of(&demand, at) {
        Some(shared) => (0, shared.override_index, refused_for(&[shared])),
        None => match limits.pod_limiter().peek(at, key, cost) {
            Ok(Tightest { limit, override_index, .. }) => (limit, override_index, Some(Duration::ZERO)),
            Err(refused) => {
                let opens = if limits.is_single() { refused.retry_after() } else { opens_after(&[demand], at) };
                (refused.limit, refused.override_index, opens)
            }
        },
    };
    let requests = limits.quota(limit, override_index).map_or(0, |quota| quota.requests());
    let state = QuotaState { limit, requests, ..QuotaState::default() };
    Refusal::new(rule, (state, override_index), retry_after, at).until_the_end_of(rest)
}

impl SharedDemand {
    /// Returns `None` for the charge of a rule of scope Pod.
    pub(crate) fn of(demand: &Demand<'_, '_>, now: Time) -> Option<Self> {
        let SharedPart { terms, .. } = demand.limits.shared.as_ref()?;
        Some(Self {
            rule: Arc::clone(demand.rule),
            key: demand.limits.ban.as_ref().map(|_| demand.key.into()),
            hash: demand.limits.key.hash(demand.key),
            override_index: terms.override_of(demand.key),
            cost: u32::try_from(demand.cost).unwrap_or(u32::MAX),
            patience: demand.latest.map_or(Duration::ZERO, |latest| latest.duration_since(now)),
            counts_for_ban: demand.counts_for_ban,
        })
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.rule.charged_rates()
    }

    fn part(&self) -> &SharedPart {
        self.limits().shared.as_ref().expect("the rule is shared")
    }

    pub(crate) fn claim(&self) -> Claim {
        self.part().limiter.claim(self.hash, self.cost, self.patience)
    }

    /// From now on, the request is refused if it cannot go immediately.
    pub(crate) fn refuse_waits(&mut self) {
        self.patience = Duration::ZERO;
    }

    /// Asks the store.
    pub(crate) fn ask(&self) -> PendingGrant {
        self.part().limiter.ask(self.hash, self.cost, self.patience)
    }

    /// Gives back units of earlier requests.
    pub(crate) fn credit(&self, units: u64) {
        self.part().limiter.credit(self.hash, units);
    }

    /// Returns the data of this program about the key.
    pub(crate) fn known(&self) -> KeyView {
        let known = self.part().limiter.known(self.hash, self.cost);
        let never = self.never_admitted_by();
        KeyView { left: known.left.map(|left| Left { limit: never.unwrap_or(left.limit), ..left }), ..known }
    }

    /// The first limit that never admits the cost. `None` if all limits admit it at some time. The store reports only the
    /// tightest limit.
    pub(crate) fn never_admitted_by(&self) -> Option<usize> {
        let quotas = self.part().terms.quotas(self.override_index);
        quotas.iter().position(|quota| u64::from(self.cost) > quota.most())
    }

    /// Returns the name of the store.
    pub(crate) fn store(&self) -> &str {
        self.part().limiter.client().name()
    }

    /// Runs a task on the runtime of the store client.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.part().limiter.spawn(task);
    }

    pub(crate) fn override_index(&self) -> Option<usize> {
        self.override_index
    }

    /// Returns the state of the tightest limit, if the store reported it; otherwise zeros. A limit that never admits the
    /// cost is named in its place.
    pub(crate) fn state(&self, left: Option<Left>) -> QuotaState {
        let limit = self.never_admitted_by().or(left.map(|left| left.limit)).unwrap_or(0);
        let requests = self.limits().quota(limit, self.override_index).map_or(0, |quota| quota.requests());
        let seconds = retry_after_seconds(left.map_or(Duration::ZERO, |left| left.full_in));
        QuotaState { limit, requests, remaining: left.map_or(0, |left| left.units), seconds }
    }

    /// As [`state`](Self::state), after this refusal. If no retry can succeed, the seconds are those until full credit.
    fn refused_state(&self, refused: &Refused) -> QuotaState {
        let Some(wait) = refused.retry_after else { return self.known_state(refused.left) };
        let most = u64::from(self.cost).saturating_sub(1);
        let state = if most == 0 { self.state(refused.left) } else { self.known_state(refused.left) };
        // The numbers of the last answer can be those of an earlier or a later window.
        QuotaState { remaining: state.remaining.min(most), seconds: retry_after_seconds(wait), ..state }
    }

    /// As [`state`](Self::state), with the seats that this program holds. Without `left`, the last answer counts.
    pub(crate) fn known_state(&self, left: Option<Left>) -> QuotaState {
        let known = self.known();
        let state = self.state(left.or(known.left));
        QuotaState { remaining: state.remaining.saturating_add(known.seats.into()), ..state }
    }

    /// Counts a refusal, also for the rule's ban, and builds it.
    pub(crate) fn refusal(&self, refused: Refused, at: Time) -> Refusal<'_> {
        self.refusal_by(&self.rule, refused, at)
    }

    /// As [`refusal`](Self::refusal). The refusal borrows the rule from `rule`, which must be the rule of this demand.
    pub(crate) fn refusal_by<'r>(&self, rule: &'r Arc<Rule>, refused: Refused, at: Time) -> Refusal<'r> {
        if let (Some(rest), Some(key), Some(limits)) = (refused.ban_rest, &self.key, rule.rates()) {
            limits.learn_ban(key, rest, at);
            return refuse_banned_key((rule, limits), (key, self.cost.into()), rest, at);
        }
        let state = self.refused_state(&refused);
        let refusal = Refusal::new(rule, (state, self.override_index), refused.retry_after, at);
        match &self.key {
            Some(key) if self.counts_for_ban => {
                self.end_lifted_ban(key, at);
                refusal.counted_for_ban(key)
            }
            _ => refusal,
        }
    }

    /// Ends the ban of the key here, if the store has answered that another program has lifted it.
    fn end_lifted_ban(&self, key: &[u8], at: Time) {
        let _ = self.limits().known_ban(key, at);
    }

    /// Counts a refusal in shadow mode, also for the rule's ban.
    pub(crate) fn count_shadow_limited(&self, refused: Refused, at: Time) {
        self.rule.statistics.shadow_limited.count();
        let Some(key) = &self.key else { return };
        match refused.ban_rest {
            Some(rest) => {
                self.rule.statistics.count_banned(self.rule.mode);
                self.limits().learn_ban(key, rest, at);
            }
            None => {
                self.end_lifted_ban(key, at);
                self.limits().count_for_ban(key, at, &self.rule);
            }
        }
    }
}
