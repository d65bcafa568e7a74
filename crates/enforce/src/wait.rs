//! Requests that wait for their turn.
//!
//! A request that may wait joins the queues of all rules that match it. In the queues of rules that let requests wait,
//! the request waits until it is at the head. In the other queues it only takes a position, which later requests
//! observe. When the request is at the head and all rules have capacity, all rules are charged together. A request that
//! leaves earlier is not charged.
//!
//! A request of shared rules first waits for the store (`asking`). When it has all its seats, it continues as above.

mod asking;

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use weir_core::{Quota, RuleCharged, RuleRefused, RuleRefusedAt, Ticket, Time};
use weir_store::{Denied, Grant};
use weir_tower::{AtHead, MonotonicClock, Waiting};

use self::asking::Asking;
use super::{
    charge::{Ask, charge_all, opens_after},
    fields::Fields,
    follow_up::FollowUp,
    outcome::{fields_of_several, fields_with_shared, refusal},
    refusal::Refusal,
    rule::Rule,
    shared::SharedAsk,
};

pub(super) use self::asking::settle;

/// The result for a request that no rule refuses immediately.
pub(super) enum Entry {
    Goes(Vec<RuleCharged>),
    Waits(Box<Wait>),
}

/// A request that waits. A request that is dropped leaves its queues and is not charged.
#[derive(Debug)]
pub struct Wait {
    /// The remaining work when the request is admitted. The deadline counts from the verdict.
    pub follow_up: FollowUp,
    /// The questions to stores. The request waits for the answers before it joins a queue.
    asking: Option<Asking>,
    /// The positions in queues. `None` before the request joins them, and after it is admitted or refused.
    queued: Option<Queued>,
    /// The seats of shared rules that the request holds while it waits in queues.
    seats: Vec<(SharedAsk, Grant)>,
}

#[derive(Debug)]
struct Queued {
    asked: OwnedAsks,
    waiting: Waiting,
    /// Positions in the queues of rules that do not let requests wait.
    _held: Vec<Ticket>,
    since: Time,
}

/// The charges that a waiting request needs from all its rules.
#[derive(Debug)]
struct OwnedAsks {
    all: Vec<OwnedAsk>,
    clock: MonotonicClock,
}

/// The charge that a waiting request needs from one rule.
#[derive(Debug)]
struct OwnedAsk {
    rule: Arc<Rule>,
    key: Box<[u8]>,
    cost: u64,
    latest: Option<Time>,
    /// Whether the request waits because of this rule: the rule had no capacity when the request joined the queue.
    waits: bool,
}

/// A refusal at the head of the queues.
#[derive(Debug)]
struct HeadRefusal {
    at: RuleRefusedAt,
    is_patient: bool,
}

/// Charges all rules if no request waits for them and they have capacity. Otherwise joins their queues. Refuses
/// immediately if a wait cannot help: the turn would come too late, or a rule that does not let requests wait refuses.
pub(super) fn enter(asks: &[Ask<'_, '_>], clock: MonotonicClock) -> Result<Entry, RuleRefusedAt> {
    let is_patient = |ask: &Ask<'_, '_>| ask.latest.is_some();
    let at_once: Vec<_> = asks.iter().map(|ask| Ask { latest: None, ..*ask }).collect();
    if !asks.iter().any(is_patient) || asks.iter().all(|ask| ask.limits.limiter.queue_len(ask.key) == 0) {
        match charge_all(&at_once, || clock.now()) {
            Ok(charged) => return Ok(Entry::Goes(charged)),
            Err(at) if !is_patient(&asks[at.ask]) => return Err(at),
            Err(_) => {}
        }
    }
    let now = clock.now();
    let (mut asked, mut patient, mut held) = (Vec::with_capacity(asks.len()), Vec::new(), Vec::new());
    for (index, ask) in asks.iter().enumerate() {
        let refused_at = |refused: RuleRefused| RuleRefusedAt { ask: index, refused };
        let limiter = &ask.limits.limiter;
        let waits = limiter.opens(now, ask.key, ask.cost).is_ok_and(|at| at > now);
        let ticket = limiter.enqueue(now, ask.key, ask.cost, ask.latest.or(Some(now))).map_err(refused_at)?;
        if is_patient(ask) {
            patient.push(ticket);
        } else {
            ticket.step_aside(now);
            held.push(ticket);
        }
        let (rule, key) = (Arc::clone(ask.rule), ask.key.into());
        asked.push(OwnedAsk { rule, key, cost: ask.cost, latest: ask.latest, waits });
    }
    let latest = asks.iter().filter_map(|ask| ask.latest).min();
    let waiting = Waiting::new(patient, latest, clock);
    let queued = Queued { asked: OwnedAsks { all: asked, clock }, waiting, _held: held, since: now };
    Ok(Entry::Waits(Box::new(Wait::of_queue(queued))))
}

impl Wait {
    fn of_queue(queued: Queued) -> Self {
        Self { follow_up: FollowUp::default(), asking: None, queued: Some(queued), seats: Vec::new() }
    }

    /// Ready when the request is admitted, charged and counted. Returns the headers for its response. Do not poll again
    /// after that.
    ///
    /// # Errors
    ///
    /// The refusal of a request that can no longer be admitted in time.
    pub fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Result<Fields, LateRefusal>> {
        let mut turn = ready!(self.poll_charges(context));
        if let Ok(fields) = &mut turn {
            self.follow_up.admit(fields);
        }
        Poll::Ready(turn)
    }

    /// Ready when all rates have charged the request.
    fn poll_charges(&mut self, context: &mut Context<'_>) -> Poll<Result<Fields, LateRefusal>> {
        if self.asking.is_some() {
            match ready!(self.poll_stores(context)) {
                Ok(None) => {}
                Ok(Some(fields)) => return Poll::Ready(Ok(fields)),
                Err(late) => return Poll::Ready(Err(late)),
            }
        }
        let queued = self.queued.as_mut().expect("polled again after it was ready");
        let turn = ready!(queued.waiting.poll(&queued.asked, context));
        // Leaves the queues first, because the headers and the refusal below report the state of the queues.
        let Some(Queued { asked, since, .. }) = self.queued.take() else { return Poll::Pending };
        let charged = match turn {
            Ok(charged) => charged,
            Err(HeadRefusal { at, .. }) => return Poll::Ready(Err(LateRefusal(Reason::Own { asked, at }))),
        };
        let waited = asked.clock.now().duration_since(since);
        for OwnedAsk { rule, waits, .. } in &asked.all {
            rule.counters.count_allowed();
            if *waits && waited > Duration::ZERO {
                rule.counters.count_wait(waited);
            }
        }
        if !self.seats.is_empty() {
            let states = settle(&mut self.seats);
            let states: Vec<_> = states.iter().map(|(ask, state)| (ask, *state)).collect();
            return Poll::Ready(Ok(fields_with_shared(&asked.asks(), &charged, &states)));
        }
        Poll::Ready(Ok(fields_of_several(&asked.asks(), &charged)))
    }
}

/// A request that waited and can no longer be admitted in time: its rules changed, or a rule that does not let requests
/// wait has no capacity.
#[derive(Debug)]
pub struct LateRefusal(Reason);

#[derive(Debug)]
enum Reason {
    /// A rule of scope Pod, which this program counts.
    Own { asked: OwnedAsks, at: RuleRefusedAt },
    /// A shared rule.
    Shared { ask: SharedAsk, denied: Denied, clock: MonotonicClock },
}

impl LateRefusal {
    /// Counts the refusal and passes it to `then`.
    pub(super) fn refuse<R>(self, then: impl FnOnce(&Refusal<'_>) -> R) -> R {
        match self.0 {
            Reason::Own { asked, at } => then(&refusal(&asked.asks(), at, asked.clock.now())),
            Reason::Shared { ask, denied, clock } => then(&ask.refusal(denied, clock.now())),
        }
    }

    /// Counts this refusal for a policy in shadow mode, which does not refuse the request.
    pub(super) fn count_shadow(&self) {
        match &self.0 {
            Reason::Own { asked, at } => asked.asks()[at.ask].count_shadow_limited(asked.clock.now()),
            Reason::Shared { ask, clock, .. } => ask.count_shadow_limited(clock.now()),
        }
    }
}

impl OwnedAsks {
    fn asks(&self) -> Vec<Ask<'_, '_>> {
        let asks = self.all.iter().filter_map(|held| {
            let limits = held.rule.limits.as_ref()?;
            Some(Ask { rule: &held.rule, limits, key: &held.key, cost: held.cost, latest: None })
        });
        asks.collect()
    }

    /// The rules that let requests wait, in the order of their queues.
    fn patient(&self) -> impl Iterator<Item = (usize, &OwnedAsk)> {
        self.all.iter().enumerate().filter(|(_, held)| held.latest.is_some())
    }
}

impl AtHead for OwnedAsks {
    type Pass = Vec<RuleCharged>;
    type Refusal = HeadRefusal;

    /// If several rules refuse, returns the refusal with the longest wait. A rule that does not let requests wait takes
    /// precedence.
    fn charge(&self, now: Time) -> Result<Vec<RuleCharged>, HeadRefusal> {
        let asks = self.asks();
        charge_all(&asks, || self.clock.now()).map_err(|at| {
            let halt = |at: RuleRefusedAt| HeadRefusal { is_patient: self.all[at.ask].latest.is_some(), at };
            let refuses = |(ask, one): (usize, &Ask<'_, '_>)| {
                let refused = one.limits.limiter.peek(now, one.key, one.cost).err()?;
                Some(halt(RuleRefusedAt { ask, refused }))
            };
            let longest = asks.iter().enumerate().filter_map(refuses).max_by_key(|halt| {
                let wait = opens_after(&asks[halt.at.ask..=halt.at.ask], now);
                (!halt.is_patient, wait)
            });
            longest.unwrap_or_else(|| halt(at))
        })
    }

    fn late(&self, now: Time) -> HeadRefusal {
        let late = self.patient().find_map(|(ask, held)| {
            let limits = held.rule.limits.as_ref()?;
            let refused = limits.limiter.enqueue(now, &held.key, held.cost, Some(Time::default())).err()?;
            Some(HeadRefusal { at: RuleRefusedAt { ask, refused }, is_patient: true })
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
        self.patient().nth(queue).is_some_and(|(ask, _)| ask == halt.at.ask)
    }
}
