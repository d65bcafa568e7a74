//! Costs that are known only after the request's arrival.
//!
//! A request is charged 1 on arrival. The rest is charged when a body or the response supplies the cost, so it can use
//! capacity that becomes free in the future. Each limit is charged for itself, at most twelve hours ahead. A cost
//! beyond that is not charged. For shared rules, the store counts the rest as debt, and its buckets owe at most a day.
//! The limit admits new requests again when the debt has fallen to `debt`.
//!
//! A response can also show that the request costs nothing. Then the 1 is given back as far as its limit can still use
//! it. Until then, the request is counted. So no limit ever admits too many requests that cost something, for any answers
//! of the app. A request without a response costs 1: its client left, its deadline passed, or the app failed.
//!
//! The bytes of a body pass at the times of their reservations ([`LimitedBody`](crate::LimitedBody)). A cost in a
//! header does not delay its response: the response passes immediately, and the next requests wait or are refused.
//!
//! A rule in shadow mode that would refuse the request is charged nothing. But the request goes to the app, so the
//! header of the response must be removed as well.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue};
use weir_core::{RuleCharge, RuleCharged, RuleChargedAhead, Ticket, Time};
use weir_store::UsedSeats;
use weir_tower::MonotonicClock;

use crate::{
    cost::{Cost, HeaderCost},
    decide::charge::Demand,
    rule::{Limits, Rule},
};

/// A time after every possible reservation.
const FAR: Duration = Duration::from_hours(24);

/// A cost that one rule charges when a body or the response supplies it.
#[derive(Clone, Debug)]
pub struct DeferredCost {
    pub(crate) rule: Arc<Rule>,
    pub(crate) key: Box<[u8]>,
    /// The decision of a rule in shadow mode. `None` if the rule enforces.
    shadow: Option<Arc<Mutex<Shadow>>>,
    on_arrival: Arc<Mutex<OnArrival>>,
}

/// The charge on arrival, which the response can give back.
#[derive(Debug)]
pub(crate) enum Unit {
    Pod(RuleCharge),
    Shared(UsedSeats),
}

/// What is known about the charge on arrival.
#[derive(Debug, Default)]
enum OnArrival {
    /// Nothing is charged, or the charge stays.
    #[default]
    Stays,
    /// The response decides on the charge.
    Charged(Box<Unit>),
    /// The request costs nothing. A store that admits it later gets the unit back.
    Free,
}

/// The decision of a rule in shadow mode on a request that goes to the app.
#[derive(Debug)]
pub(crate) enum Shadow {
    Admits,
    /// The rule charges nothing.
    Refuses,
    /// A store has not answered yet. The rule charges these units if the store admits the request.
    AsksStore(u64),
}

/// The reason why a reservation is not possible.
#[derive(Debug)]
pub(crate) enum NotReserved {
    /// The cost is larger than this maximum of one reservation.
    TooMany(u64),
    /// The limit is reserved as far ahead as possible. A reservation can succeed after this time.
    After(Duration),
}

impl DeferredCost {
    /// Returns the deferred cost of a rule that enforces. `None` if the cost is known on arrival.
    pub(crate) fn of(demand: &Demand<'_, '_>) -> Option<Self> {
        let later = demand.limits.cost.is_known_later();
        later.then(|| Self::new(Arc::clone(demand.rule), demand.key.into(), None))
    }

    /// As [`of`](Self::of), for a rule in shadow mode.
    pub(crate) fn in_shadow(demand: &Demand<'_, '_>, shadow: Shadow) -> Option<Self> {
        let cost = Self::of(demand)?;
        Some(Self { shadow: Some(Arc::new(Mutex::new(shadow))), ..cost })
    }

    /// As [`in_shadow`](Self::in_shadow), for a rule that would refuse the request. `None` if the response has no header
    /// to remove.
    pub(crate) fn refused_in_shadow(rule: &Arc<Rule>) -> Option<Self> {
        let Cost::ResponseHeader(_) = rule.rates()?.cost else { return None };
        let shadow = Some(Arc::new(Mutex::new(Shadow::Refuses)));
        Some(Self::new(Arc::clone(rule), Box::default(), shadow))
    }

    fn new(rule: Arc<Rule>, key: Box<[u8]>, shadow: Option<Arc<Mutex<Shadow>>>) -> Self {
        Self { rule, key, shadow, on_arrival: Arc::default() }
    }

    /// Keeps the charges of these rules until the response supplies the costs.
    pub(crate) fn keep_charges(
        costs: &[Self],
        demands: &[Demand<'_, '_>],
        charged: Vec<RuleCharged>,
        clock: MonotonicClock,
    ) {
        for (demand, RuleCharged { charge, .. }) in demands.iter().zip(charged) {
            Self::keep(costs, demand.rule, Unit::Pod(charge), clock);
        }
    }

    /// Keeps the charge of this rule, if the response supplies the rule's cost.
    pub(crate) fn keep(costs: &[Self], rule: &Arc<Rule>, unit: Unit, clock: MonotonicClock) {
        let of_rule = |cost: &&Self| Arc::ptr_eq(&cost.rule, rule) && cost.header_cost().is_some();
        let Some(cost) = costs.iter().find(of_rule) else { return };
        let mut on_arrival = cost.on_arrival();
        if let OnArrival::Free = *on_arrival {
            drop(on_arrival);
            cost.give_back(unit, clock);
        } else {
            *on_arrival = OnArrival::Charged(Box::new(unit));
        }
    }

    /// Ends the question to a store, which admits the request or not.
    pub(crate) fn end_question(&self, is_admitted: bool, clock: MonotonicClock) {
        let answer = if is_admitted { Shadow::Admits } else { Shadow::Refuses };
        if let Some(Shadow::AsksStore(units)) = self.shadow().map(|mut shadow| mem::replace(&mut *shadow, answer))
            && is_admitted
        {
            self.charge_now(units, clock);
        }
    }

    fn on_arrival(&self) -> MutexGuard<'_, OnArrival> {
        self.on_arrival.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shadow(&self) -> Option<MutexGuard<'_, Shadow>> {
        self.shadow.as_ref().map(|shadow| shadow.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the cost delays the body: true unless the rule is in shadow mode.
    pub(crate) fn is_enforced(&self) -> bool {
        self.shadow.is_none()
    }

    /// Whether the cost is the bytes of the request's body.
    pub(crate) fn is_request_bytes(&self) -> bool {
        self.is(&Cost::RequestBytes)
    }

    /// Whether the cost is the bytes of the response's body.
    pub(crate) fn is_response_bytes(&self) -> bool {
        self.is(&Cost::ResponseBytes)
    }

    fn is(&self, cost: &Cost) -> bool {
        self.limits().cost == *cost
    }

    fn limits(&self) -> &Limits {
        self.rule.charged_rates()
    }

    /// Charges the costs that headers of the response contain, and removes these headers, which clients must not see.
    /// Several rules can read the same header, so it is removed when all costs are charged.
    pub(crate) fn charge_headers(costs: &[Self], headers: &mut HeaderMap, clock: MonotonicClock) {
        for cost in costs {
            cost.charge_value(cost.header().and_then(|name| headers.get(name)).map(HeaderValue::as_bytes), clock);
        }
        for name in costs.iter().filter_map(Self::header) {
            headers.remove(name);
        }
    }

    /// Returns the header of the response that contains the cost. Clients must not see this header.
    pub fn header(&self) -> Option<&HeaderName> {
        self.header_cost().map(|header| &header.name)
    }

    /// Charges the cost that is the value of the [`header`](Self::header). If the cost is 0, gives the charge on arrival
    /// back.
    pub fn charge_value(&self, value: Option<&[u8]>, clock: MonotonicClock) {
        let Some(header) = self.header_cost() else { return };
        let cost = header.of_response(value);
        let known = if cost == 0 { OnArrival::Free } else { OnArrival::Stays };
        let on_arrival = mem::replace(&mut *self.on_arrival(), known);
        match (on_arrival, cost) {
            (OnArrival::Charged(unit), 0) => self.give_back(*unit, clock),
            (_, 0) => {}
            _ => self.charge(cost - 1, clock),
        }
    }

    fn give_back(&self, unit: Unit, clock: MonotonicClock) {
        match unit {
            Unit::Shared(seats) => seats.give_back(),
            Unit::Pod(charge) => self.refund(charge, clock),
        }
    }

    /// Gives back a charge of a rule of scope Pod.
    pub(crate) fn refund(&self, charge: RuleCharge, clock: MonotonicClock) {
        self.limits().pod_limiter().refund(&self.key, charge, || clock.now());
    }

    fn header_cost(&self) -> Option<&HeaderCost> {
        match &self.limits().cost {
            Cost::ResponseHeader(header) => Some(header),
            _ => None,
        }
    }

    /// Charges each limit the cost, as far ahead as possible.
    pub(crate) fn charge(&self, cost: u64, clock: MonotonicClock) {
        match self.shadow().as_deref_mut() {
            None | Some(Shadow::Admits) => self.charge_now(cost, clock),
            Some(Shadow::Refuses) => {}
            Some(Shadow::AsksStore(units)) => *units = units.saturating_add(cost),
        }
    }

    fn charge_now(&self, cost: u64, clock: MonotonicClock) {
        let limits = self.limits();
        match &limits.shared {
            Some(shared) if cost > 0 => shared.limiter.owe(limits.key.hash(&self.key), cost),
            Some(_) => {}
            None => limits.pod_limiter().charge_incurred(|| clock.now(), &self.key, cost),
        }
    }

    /// Whether the limit has room after everything that it was charged, also ahead.
    pub(crate) fn has_room(&self, now: Time) -> bool {
        self.limits().pod_limiter().peek(now, &self.key, 1).is_ok()
    }

    /// Returns the number of bodies that wait for this key of the rule.
    pub(crate) fn queue_len(&self) -> usize {
        self.limits().pod_limiter().queue_len(&self.key)
    }

    /// Takes the last position in the queue, without a latest time.
    pub(crate) fn enqueue(&self, now: Time) -> Option<Ticket> {
        self.limits().pod_limiter().enqueue(now, &self.key, 1, None).ok()
    }

    /// Reserves capacity for this cost.
    pub(crate) fn reserve(&self, cost: u64, clock: MonotonicClock) -> Result<RuleChargedAhead, NotReserved> {
        let latest: Time = clock.now().saturating_add(FAR);
        self.limits().pod_limiter().charge_ahead(|| clock.now(), &self.key, cost, latest).map_err(|refused| {
            match refused.retry_after() {
                None => NotReserved::TooMany(refused.standing.quota().most()),
                Some(wait) => NotReserved::After(wait),
            }
        })
    }
}
