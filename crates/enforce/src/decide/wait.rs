//! Requests that wait for their turn.
//!
//! A request that may wait joins the queues of all matching rules that let requests wait. When the request is at the
//! head of all of them and all rules have capacity, all rules are charged together. A request that leaves earlier is not
//! charged. While it waits for one rule, it reserves nothing in the others.
//!
//! At its turn, a request can find no capacity in a rule that lets no request wait. Then it stands aside in its own queues
//! and joins the queue of that rule. Only the first request in that queue tries again. New requests never join it.
//!
//! A request of shared rules first waits for the store (`questions`). When it has all its seats, it continues as above.
//! If the window of a seat ends while the request waits, it gets another seat when its turn has come, or is refused.

mod questions;

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use weir_core::{Quota, RuleCharged, RuleRefused, RuleRefusedAt, Ticket, Time};
use weir_store::{Grant, Refused};
use weir_tower::{AtHead, MonotonicClock, Waiting};

use self::questions::StoreQuestions;
use crate::{
    decide::{
        charge::{Demand, charge_rules},
        deferred::DeferredCost,
        follow_up::FollowUp,
        header_rules::HeaderRules,
        outcome::{admit, refusal},
        refusal::Refusal,
        shared::SharedDemand,
    },
    quota_headers::Fields,
    rule::Rule,
};

/// The result for a request that no rule refuses immediately.
pub(crate) enum Entered {
    Goes(Vec<RuleCharged>),
    Waits(Box<Wait>),
}

/// A request that waits. A request that is dropped leaves its queues and is not charged.
#[derive(Debug)]
pub struct Wait {
    /// The remaining work when the request is admitted. The deadline counts from the verdict.
    pub follow_up: FollowUp,
    /// The questions to stores. The request waits for the answers before it joins a queue.
    questions: Option<StoreQuestions>,
    /// The positions in queues. `None` before the request joins them, and after it is admitted or refused.
    queued: Option<Queued>,
    /// The seats of shared rules that the request holds while it waits in queues.
    seats: Vec<(SharedDemand, Grant)>,
    /// The matching rules that set headers in all responses, for a refusal. `None` if there are none.
    pub(crate) headers: Option<HeaderRules>,
}

#[derive(Debug)]
struct Queued {
    demands: OwnedDemands,
    waiting: Waiting,
    since: Time,
}

/// A request at the head of its queues. All its rules of scope Pod are charged. Dropping it refunds the charges.
#[derive(Debug)]
struct Turn {
    demands: OwnedDemands,
    charged: Vec<RuleCharged>,
    waited: Duration,
}

/// The demands of a waiting request on all its rules.
#[derive(Debug)]
struct OwnedDemands {
    all: Vec<OwnedDemand>,
    clock: MonotonicClock,
}

/// The demand of a waiting request on one rule.
#[derive(Debug)]
struct OwnedDemand {
    rule: Arc<Rule>,
    key: Box<[u8]>,
    cost: u64,
    latest: Option<Time>,
    counts_for_ban: bool,
    /// Whether the request waits because of this rule: the rule had no capacity when the request joined the queue.
    waits: bool,
}

impl OwnedDemand {
    fn of(demand: &Demand<'_, '_>, waits: bool) -> Self {
        let Demand { rule, limits: _, key, cost, latest, counts_for_ban } = *demand;
        Self { rule: Arc::clone(rule), key: key.into(), cost, latest, counts_for_ban, waits }
    }
}

/// Charges all rules if it is the request's turn and they have capacity. Otherwise joins the queues of the rules that let
/// it wait. Refuses immediately if a wait cannot help: the turn would come too late, or another rule refuses now.
pub(crate) fn enter(demands: &[Demand<'_, '_>], clock: MonotonicClock) -> Result<Entered, RuleRefusedAt> {
    let latest = demands.iter().filter_map(|demand| demand.latest).min();
    let at_once: Vec<_> = demands.iter().map(|demand| Demand { latest: None, ..*demand }).collect();
    let charge = || match charge_rules(&at_once, || clock.now()) {
        Err(at) if demands[at.index].latest.is_some() => Ok(None),
        charged => charged.map(|charged| Some(Entered::Goes(charged))),
    };
    let mut patient = demands.iter().filter(|demand| demand.latest.is_some());
    if patient.all(|demand| demand.limits.pod_limiter().queue_len(demand.key) == 0)
        && let Some(goes) = charge()?
    {
        return Ok(goes);
    }
    let now = clock.now();
    let (mut owned, mut tickets) = (Vec::with_capacity(demands.len()), Vec::new());
    for (index, demand) in demands.iter().enumerate() {
        let refused_at = |refused: RuleRefused| RuleRefusedAt { index, refused };
        let limiter = demand.limits.pod_limiter();
        let is_patient = demand.latest.is_some();
        let waits = is_patient && limiter.opens(now, demand.key, demand.cost).is_ok_and(|at| at > now);
        if is_patient {
            tickets.push(limiter.enqueue(now, demand.key, demand.cost, latest).map_err(refused_at)?);
        } else {
            limiter.peek(now, demand.key, demand.cost).map_err(refused_at)?;
        }
        owned.push(OwnedDemand::of(demand, waits));
    }
    if tickets.iter().all(|ticket| ticket.is_head(now))
        && let Some(goes) = charge()?
    {
        return Ok(goes);
    }
    let waiting = Waiting::new(tickets, latest, clock);
    let queued = Queued { demands: OwnedDemands { all: owned, clock }, waiting, since: now };
    Ok(Entered::Waits(Box::new(Wait::of_queue(queued))))
}

impl Wait {
    fn of_queue(queued: Queued) -> Self {
        Self { follow_up: FollowUp::default(), questions: None, queued: Some(queued), seats: Vec::new(), headers: None }
    }

    /// Whether the request has a position in a queue. A request that waits for a store has none.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.is_some()
    }

    /// Ready when the request is admitted, charged and counted. Returns the headers for its response. Do not poll again
    /// after that.
    ///
    /// # Errors
    ///
    /// The refusal of a request that can no longer be admitted in time.
    pub fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Result<Fields, LateRefusal>> {
        let mut turn = ready!(self.poll_charges(context));
        match &mut turn {
            Ok(fields) => self.follow_up.admit(fields),
            Err(late) => late.headers = self.headers.take(),
        }
        Poll::Ready(turn)
    }

    /// Ready when all rates have charged the request.
    fn poll_charges(&mut self, context: &mut Context<'_>) -> Poll<Result<Fields, LateRefusal>> {
        if self.questions.is_some() {
            match ready!(self.poll_stores(context)) {
                Ok(None) => {}
                Ok(Some(fields)) => return Poll::Ready(Ok(fields)),
                Err(late) => return Poll::Ready(Err(late)),
            }
        }
        let queued = self.queued.as_mut().expect("polled again after it was ready");
        let turn = ready!(queued.waiting.poll(&queued.demands, context));
        // Leaves the queues first, because the headers and the refusal below report the state of the queues.
        let Some(Queued { demands, since, .. }) = self.queued.take() else { return Poll::Pending };
        let charged = match turn {
            Ok(charged) => charged,
            Err(at) => return Poll::Ready(Err(LateRefusal::new(Reason::Own { demands, at }))),
        };
        let waited = demands.clock.now().duration_since(since);
        let turn = Turn { demands, charged, waited };
        if self.seats.iter().any(|(_, grant)| grant.has_ended()) {
            self.renew_seats(turn);
            return self.poll_charges(context);
        }
        Poll::Ready(Ok(turn.go(&mut self.seats, &self.follow_up.costs)))
    }
}

impl Turn {
    /// Uses the charges and the seats, and counts the request.
    fn go(mut self, seats: &mut Vec<(SharedDemand, Grant)>, costs: &[DeferredCost]) -> Fields {
        for OwnedDemand { rule, .. } in self.demands.all.iter().filter(|demand| demand.waits && !self.waited.is_zero())
        {
            rule.statistics.count_wait(self.waited);
        }
        let charged = std::mem::take(&mut self.charged);
        admit(&self.demands.demands(), charged, seats, (costs, self.demands.clock))
    }

    /// Refunds the charges, because a store refuses the request.
    fn into_refunded(mut self) -> OwnedDemands {
        self.refund();
        OwnedDemands { all: std::mem::take(&mut self.demands.all), clock: self.demands.clock }
    }

    fn refund(&mut self) {
        let clock = self.demands.clock;
        for (demand, RuleCharged { charge, .. }) in self.demands.demands().iter().zip(std::mem::take(&mut self.charged))
        {
            demand.limits.pod_limiter().refund(demand.key, charge, || clock.now());
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.refund();
    }
}

/// A request that waited and can no longer be admitted in time: its rules changed, or a rule in which it reserved nothing
/// has no capacity.
#[derive(Debug)]
pub struct LateRefusal {
    reason: Reason,
    /// The matching rules that set headers in all responses. `None` if there are none.
    headers: Option<HeaderRules>,
}

#[derive(Debug)]
enum Reason {
    /// A rule of scope Pod, which this program counts.
    Own { demands: OwnedDemands, at: RuleRefusedAt },
    /// A shared rule.
    Shared { demand: SharedDemand, refused: Refused, clock: MonotonicClock },
}

impl LateRefusal {
    fn new(reason: Reason) -> Self {
        Self { reason, headers: None }
    }

    /// Counts the refusal and passes it to `then`.
    pub(crate) fn refuse<R>(self, then: impl FnOnce(&Refusal<'_>) -> R) -> R {
        let headers = self.headers;
        let then = |mut refusal: Refusal<'_>| {
            if let Some(rules) = headers {
                rules.add_to(&mut refusal);
            }
            then(&refusal)
        };
        match self.reason {
            Reason::Own { demands, at } => then(refusal(&demands.demands(), at, demands.clock.now())),
            Reason::Shared { demand, refused, clock } => then(demand.refusal(refused, clock.now())),
        }
    }

    /// Counts this refusal of a rule in shadow mode, which does not refuse the request.
    pub(crate) fn count_shadow(&self) {
        match &self.reason {
            Reason::Own { demands, at } => {
                demands.demands()[at.index].count_shadow_limited(demands.clock.now());
            }
            Reason::Shared { demand, refused, clock } => demand.count_shadow_limited(*refused, clock.now()),
        }
    }
}

impl OwnedDemands {
    fn demands(&self) -> Vec<Demand<'_, '_>> {
        let demands = self.all.iter().map(|held| {
            let demand = Demand::new(&held.rule, held.rule.charged_rates(), &held.key, held.cost);
            Demand { counts_for_ban: held.counts_for_ban, ..demand }
        });
        demands.collect()
    }

    /// The rules that let requests wait, in the order of their queues.
    fn patient(&self) -> impl Iterator<Item = (usize, &OwnedDemand)> {
        self.all.iter().enumerate().filter(|(_, held)| held.latest.is_some())
    }
}

impl AtHead for OwnedDemands {
    type Pass = Vec<RuleCharged>;
    type Refusal = RuleRefusedAt;

    /// If several rules refuse, returns the refusal with the longest wait.
    fn charge(&self, now: Time) -> Result<Vec<RuleCharged>, RuleRefusedAt> {
        let demands = self.demands();
        charge_rules(&demands, || self.clock.now()).map_err(|at| {
            let refuses = |(index, one): (usize, &Demand<'_, '_>)| {
                let refused = one.limits.pod_limiter().peek(now, one.key, one.cost).err()?;
                Some(RuleRefusedAt { index, refused })
            };
            let longest = demands.iter().enumerate().filter_map(refuses);
            longest.max_by_key(|at| at.refused.retry_after().unwrap_or(Duration::MAX)).unwrap_or(at)
        })
    }

    fn late(&self, now: Time) -> RuleRefusedAt {
        let late = self.patient().find_map(|(index, held)| {
            let limiter = held.rule.charged_rates().pod_limiter();
            let refused = limiter.enqueue(now, &held.key, held.cost, Some(Time::default())).err()?;
            Some(RuleRefusedAt { index, refused })
        });
        late.expect("a request that waits has a patient rule, and no turn comes before now")
    }

    fn retry_after(at: &RuleRefusedAt) -> Option<Duration> {
        at.refused.retry_after()
    }

    fn quota(at: &RuleRefusedAt) -> Quota {
        at.refused.standing.quota()
    }

    fn limit(&self, at: &RuleRefusedAt) -> usize {
        self.patient().position(|(index, _)| index == at.index).unwrap_or(self.all.len() + at.index)
    }

    fn join(&self, at: &RuleRefusedAt, now: Time) -> Option<Ticket> {
        let held = &self.all[at.index];
        held.rule.charged_rates().pod_limiter().enqueue(now, &held.key, held.cost, None).ok()
    }
}
