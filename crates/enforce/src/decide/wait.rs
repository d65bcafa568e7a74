//! Requests that wait for their turn.
//!
//! A request that may wait joins the queues of all rules that match it. In the queues of rules that let requests wait,
//! the request waits until it is at the head. In the other queues it only takes a position, which later requests
//! observe. When the request is at the head and all rules have capacity, all rules are charged together. A request that
//! leaves earlier is not charged.
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
        charge::{Demand, charge_rules, opens_after},
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
pub(crate) enum Entry {
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
    /// Positions in the queues of rules that do not let requests wait.
    _held: Vec<Ticket>,
    since: Time,
}

/// A request at the head of its queues. All its rules of scope Pod are charged. Dropping it refunds the charges.
#[derive(Debug)]
struct Turn {
    demands: OwnedDemands,
    charged: Vec<RuleCharged>,
    waited: Duration,
}

/// The charges that a waiting request needs from all its rules.
#[derive(Debug)]
struct OwnedDemands {
    all: Vec<OwnedDemand>,
    clock: MonotonicClock,
}

/// The charge that a waiting request needs from one rule.
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

/// A refusal at the head of the queues.
#[derive(Debug)]
struct HeadRefusal {
    at: RuleRefusedAt,
    is_patient: bool,
}

/// Charges all rules if no request waits for them and they have capacity. Otherwise joins their queues. Refuses
/// immediately if a wait cannot help: the turn would come too late, or a rule that does not let requests wait refuses.
pub(crate) fn enter(demands: &[Demand<'_, '_>], clock: MonotonicClock) -> Result<Entry, RuleRefusedAt> {
    let is_patient = |demand: &Demand<'_, '_>| demand.latest.is_some();
    let at_once: Vec<_> = demands.iter().map(|demand| Demand { latest: None, ..*demand }).collect();
    if !demands.iter().any(is_patient)
        || demands.iter().all(|demand| demand.limits.pod_limiter().queue_len(demand.key) == 0)
    {
        match charge_rules(&at_once, || clock.now()) {
            Ok(charged) => return Ok(Entry::Goes(charged)),
            Err(at) if !is_patient(&demands[at.index]) => return Err(at),
            Err(_) => {}
        }
    }
    let now = clock.now();
    let (mut owned, mut patient, mut held) = (Vec::with_capacity(demands.len()), Vec::new(), Vec::new());
    for (index, demand) in demands.iter().enumerate() {
        let refused_at = |refused: RuleRefused| RuleRefusedAt { index, refused };
        let limiter = demand.limits.pod_limiter();
        let waits = limiter.opens(now, demand.key, demand.cost).is_ok_and(|at| at > now);
        let ticket = limiter.enqueue(now, demand.key, demand.cost, demand.latest.or(Some(now))).map_err(refused_at)?;
        if is_patient(demand) {
            patient.push(ticket);
        } else {
            ticket.step_aside(now);
            held.push(ticket);
        }
        owned.push(OwnedDemand::of(demand, waits));
    }
    let latest = demands.iter().filter_map(|demand| demand.latest).min();
    let waiting = Waiting::new(patient, latest, clock);
    let queued = Queued { demands: OwnedDemands { all: owned, clock }, waiting, _held: held, since: now };
    Ok(Entry::Waits(Box::new(Wait::of_queue(queued))))
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
            Err(HeadRefusal { at, .. }) => return Poll::Ready(Err(LateRefusal::new(Reason::Own { demands, at }))),
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

/// A request that waited and can no longer be admitted in time: its rules changed, or a rule that does not let requests
/// wait has no capacity.
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
    type Refusal = HeadRefusal;

    /// If several rules refuse, returns the refusal with the longest wait. A rule that does not let requests wait takes
    /// precedence.
    fn charge(&self, now: Time) -> Result<Vec<RuleCharged>, HeadRefusal> {
        let demands = self.demands();
        charge_rules(&demands, || self.clock.now()).map_err(|at| {
            let halt = |at: RuleRefusedAt| HeadRefusal { is_patient: self.all[at.index].latest.is_some(), at };
            let refuses = |(index, one): (usize, &Demand<'_, '_>)| {
                let refused = one.limits.pod_limiter().peek(now, one.key, one.cost).err()?;
                Some(halt(RuleRefusedAt { index, refused }))
            };
            let longest = demands.iter().enumerate().filter_map(refuses).max_by_key(|halt| {
                let wait = opens_after(&demands[halt.at.index..=halt.at.index], now);
                (!halt.is_patient, wait.unwrap_or(Duration::MAX))
            });
            longest.unwrap_or_else(|| halt(at))
        })
    }

    fn late(&self, now: Time) -> HeadRefusal {
        let late = self.patient().find_map(|(index, held)| {
            let limiter = held.rule.charged_rates().pod_limiter();
            let refused = limiter.enqueue(now, &held.key, held.cost, Some(Time::default())).err()?;
            Some(HeadRefusal { at: RuleRefusedAt { index, refused }, is_patient: true })
        });
        late.expect("a request that waits has a patient rule, and no turn comes before now")
    }

    fn retry_after(halt: &HeadRefusal) -> Option<Duration> {
        if halt.is_patient { halt.at.refused.retry_after() } else { None }
    }

    fn quota(halt: &HeadRefusal) -> Quota {
        halt.at.refused.standing.quota()
    }

    fn waits_for(&self, halt: &HeadRefusal, queue: usize) -> bool {
        self.patient().nth(queue).is_some_and(|(index, _)| index == halt.at.index)
    }
}
