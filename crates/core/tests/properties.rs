//! Limiters compared with the plain model of their strategy (`model/mod.rs`), decision by decision, with random
//! arrivals, costs and reservations.
//!
//! Windows, and buckets whose emission interval is a whole number of nanoseconds, agree to the nanosecond. Other
//! buckets can be early by less than two nanoseconds. No bucket is ever late.
#![cfg(not(loom))]

mod model;
mod random;
mod suite;

use std::{collections::HashMap, num::NonZeroUsize, time::Duration};

use proptest::prelude::*;
use weir_core::{
    Charge, Limiter, Quota, Refused, RuleLimiter, RuleRefused, Standing, Strategy as Counting, Terms, Tightest, Time,
};

use self::{
    model::Model,
    random::{Arrival, END, START, What, arrivals, for_each_strategy, quotas},
    suite::is_window,
};

/// The longest wait of a reservation.
const MAX_AHEAD: Duration = Duration::from_hours(12);

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// Returns the requests until the end of all tests, with their times and costs.
fn timed(arrivals: Vec<Arrival>, quota: Quota) -> impl Iterator<Item = (Arrival, u64, u64)> {
    let mut now = START;
    arrivals.into_iter().map_while(move |arrival| {
        let cost;
        (now, cost) = arrival.after(now, quota);
        (now <= END).then_some((arrival, now, cost))
    })
}

/// Returns the number of nanoseconds by which a limiter can be early.
fn tolerance(quota: Quota) -> u64 {
    if is_window(quota.strategy()) {
        return 0;
    }
    let (period, requests) = (quota.period().as_nanos(), u128::from(quota.requests()));
    let refill = u128::from(quota.most()) * period / requests;
    // Units are larger if a burst takes longer than 146 years to flow in.
    if period.is_multiple_of(requests) && refill + period < 1 << 62 {
        return 0;
    }
    2 + u64::try_from(refill >> 61).expect("bounds of the API")
}

/// A limiter and its model side by side.
struct Pair {
    limiter: Limiter,
    model: Model,
    quota: Quota,
    early: u64,
}

impl Pair {
    fn new(quota: Quota) -> Self {
        Self { limiter: Limiter::new(at(START), quota), model: Model::new(quota), quota, early: tolerance(quota) }
    }

    /// Sends an arrival to the limiter and to the model.
    fn ask(&mut self, arrival: Arrival, now: u64, cost: u64) -> Result<(), TestCaseError> {
        let before = state(self.limiter.peek(at(now)));
        self.stands(now)?;
        let charge = match arrival.ask {
            What::Charge | What::ChargeAndGiveBack => self.charge(now, cost)?,
            What::Reserve | What::ReserveAndGiveBack => self.reserve(now, cost, arrival.latest(now, self.quota))?,
        };
        match (charge, arrival.ask) {
            (None, _) => prop_assert_eq!(state(self.limiter.peek(at(now))), before, "a refusal leaves no trace"),
            (Some((charge, goes)), What::ChargeAndGiveBack | What::ReserveAndGiveBack) => {
                self.limiter.refund(charge, || at(now));
                self.is_given_back(before, now, goes, cost)?;
            }
            (Some((_, goes)), What::Charge | What::Reserve) => self.model.charge(now, goes, cost),
        }
        self.stands(now)
    }

    /// Checks that a charge that is given back immediately leaves no trace. Two kinds of future reservations leave a
    /// trace, but never free capacity.
    fn is_given_back(&mut self, before: State, now: u64, goes: u64, cost: u64) -> Result<(), TestCaseError> {
        let after = state(self.limiter.peek(at(now)));
        match self.quota.strategy() {
            // The reservation in a later window forfeited the rest of the current window.
            Counting::FixedWindow if goes > now => self.model.charge(now, goes, 0),
            // After the refund, all its entries open only when the last entry opens. The test continues with a new log.
            Counting::SlidingWindowLog if goes > now && cost > 1 => {
                prop_assert!(after.0 <= before.0 && after.1 >= before.1, "{after:?} after {before:?}");
                *self = Self::new(self.quota);
            }
            _ => prop_assert_eq!(after, before, "a charge that is given back immediately leaves no trace"),
        }
        Ok(())
    }

    /// Returns the charge, and the time at which the request is admitted.
    fn charge(&self, now: u64, cost: u64) -> Result<Option<(Charge, u64)>, TestCaseError> {
        let within = self.model.admits(now, cost);
        match self.limiter.charge(at(now), cost) {
            Ok(admitted) => {
                prop_assert!(within || self.model.admits(now + self.early, cost), "{cost} too early at {now}");
                Ok(Some((admitted.charge, now)))
            }
            Err(refused) => {
                prop_assert!(!within, "{cost} late at {now}");
                self.says_when(&refused, now, cost)?;
                Ok(None)
            }
        }
    }

    fn reserve(&self, now: u64, cost: u64, latest: u64) -> Result<Option<(Charge, u64)>, TestCaseError> {
        let first = self.model.first(now, cost);
        match self.limiter.reserve(at(now), cost, at(latest)) {
            Ok(reserved) => {
                let first = first.expect("the cost can be admitted");
                let goes = reserved.at.as_nanos();
                prop_assert!(self.model.has_room_in_queue(now + self.early, cost), "{cost} is too much for the queue");
                prop_assert!(goes >= now && goes <= latest);
                prop_assert!(goes <= first, "{cost} late by {} at {now}", goes - first);
                prop_assert!(goes + self.early >= first, "{cost} early by {} at {now}", first - goes);
                Ok(Some((reserved.charge, goes)))
            }
            Err(refused) => {
                if let Some(first) = first.filter(|_| self.model.has_room_in_queue(now, cost)) {
                    let (next_window, line) = (first / period(self.quota) > now / period(self.quota), nanos(MAX_AHEAD));
                    let beyond = self.quota.strategy() == Counting::SlidingWindowCounter && next_window;
                    prop_assert!(
                        first > latest || first - now > line || beyond,
                        "{cost} at {now} could have been reserved at {first}"
                    );
                }
                self.says_when(&refused, now, cost)?;
                Ok(None)
            }
        }
    }

    /// Checks that a caller is admitted after the time that `retry_after` returns, and not later than necessary.
    fn says_when(&self, refused: &Refused, now: u64, cost: u64) -> Result<(), TestCaseError> {
        let wait = refused.retry_after().map(nanos);
        self.is_about(wait, self.model.first(now, cost).map(|first| first - now), "retry after")
    }

    /// Checks the numbers that response headers report.
    fn stands(&self, now: u64) -> Result<(), TestCaseError> {
        let standing = self.limiter.peek(at(now));
        let remaining = |now| most_admitted(&self.model, now, suite::at_once(self.quota.strategy(), self.quota.most()));
        let (least, most) = (remaining(now), remaining(now + self.early));
        prop_assert!((least..=most).contains(&standing.remaining()), "{} remain, not {least}", standing.remaining());
        self.is_about(standing.retry_after(1).map(nanos), self.model.first(now, 1).map(|first| first - now), "peeked")?;
        self.is_about(Some(nanos(standing.reset_after())), Some(self.model.idle(now) - now), "reset after")
    }

    fn is_about(&self, said: Option<u64>, exact: Option<u64>, what: &str) -> Result<(), TestCaseError> {
        let Some((said, exact)) = said.zip(exact) else {
            prop_assert_eq!(said, exact, "{}", what);
            return Ok(());
        };
        // The model's last time is the last time of `Time`.
        if said.max(exact) < 1 << 62 {
            prop_assert!(said <= exact && said + self.early >= exact, "{what}: {said} ns, exact are {exact}");
        }
        Ok(())
    }
}

/// Returns the largest cost that is admitted, by bisection.
fn most_admitted(model: &Model, now: u64, most: u64) -> u64 {
    let (mut admitted, mut not) = (0, most + 1);
    while not - admitted > 1 {
        let middle = admitted + (not - admitted) / 2;
        if model.admits(now, middle) { admitted = middle } else { not = middle }
    }
    admitted
}

/// The remaining requests, the time until the reset, and the time until the next admission.
type State = (u64, Duration, Option<Duration>);

fn state(standing: Standing) -> State {
    (standing.remaining(), standing.reset_after(), standing.retry_after(1))
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("584 years")
}

fn period(quota: Quota) -> u64 {
    nanos(quota.period())
}

#[test]
fn every_decision_is_the_models() {
    for_each_strategy(
        |quotas| (quotas, arrivals(60)),
        |(quota, arrivals)| {
            let mut pair = Pair::new(quota);
            for (arrival, now, cost) in timed(arrivals, quota) {
                pair.ask(arrival, now, cost)?;
            }
            Ok(())
        },
    );
}

/// Retry times and decisions agree, even if the emission interval is not a whole number of nanoseconds.
#[test]
fn a_caller_that_waits_as_told_is_admitted_and_not_later_than_needed() {
    for_each_strategy(
        |quotas| (quotas, arrivals(60)),
        |(quota, arrivals)| {
            let limiter = Limiter::new(at(START), quota);
            let mut now = START;
            for arrival in arrivals {
                let cost;
                (now, cost) = arrival.after(now, quota);
                if now > END {
                    break;
                }
                if let Err(refused) = limiter.charge(at(now), cost) {
                    let Some(wait) = refused.retry_after() else {
                        prop_assert!(cost > quota.most());
                        continue;
                    };
                    prop_assert!(wait > Duration::ZERO);
                    let moment = at(now).saturating_add(wait);
                    // Several long waits together can pass the horizon, after which a supply does not grow.
                    if moment > at(END) {
                        break;
                    }
                    let just_before = moment.saturating_sub(Duration::from_nanos(1));
                    prop_assert!(limiter.charge(just_before, cost).is_err(), "{wait:?} is too long");
                    prop_assert!(limiter.charge(moment, cost).is_ok(), "{wait:?} is too short");
                    now = moment.as_nanos();
                }
            }
            Ok(())
        },
    );
}

/// A credit makes the newest charges smaller: in a limiter, in a cell, in the overflow, and for a key with an override.
#[test]
fn a_credit_is_the_models() {
    for_each_strategy(
        |quotas| (quotas, arrivals(60)),
        |(quota, arrivals)| {
            let mut pair = Pair::new(quota);
            let terms = Terms::new([("own", quota)]).expect("one name");
            let terms = terms.with_override([b"override".as_slice()], [("own", quota)]).expect("a known name");
            // The keys of one rule, of which the first has the only cell.
            let rule = RuleLimiter::keyed(at(START), terms, NonZeroUsize::MIN);
            let mut has_refused = false;
            for (arrival, now, cost) in timed(arrivals, quota) {
                let mut is_charged = false;
                let is_credit = matches!(arrival.ask, What::ChargeAndGiveBack | What::ReserveAndGiveBack);
                if is_credit {
                    pair.limiter.credit(cost, || at(now));
                    pair.model.credit(now, cost);
                    pair.stands(now)?;
                } else if pair.charge(now, cost)?.is_some() {
                    pair.model.charge(now, now, cost);
                    is_charged = true;
                }
                for key in [b"cell".as_slice(), b"overflow", b"override"] {
                    // In the overflow, a log has an upper bound of its count. It can refuse what the limiter admits, and
                    // is then no longer comparable.
                    let is_bound = key == b"overflow" && quota.strategy() == Counting::SlidingWindowLog;
                    if is_bound && has_refused {
                        continue;
                    }
                    if is_credit {
                        rule.credit(key, cost, || at(now));
                    } else if rule.charge(|| at(now), key, cost).is_ok() != is_charged {
                        prop_assert!(is_bound && is_charged, "{:?} at {now}: {cost} must be {is_charged}", key);
                        has_refused = true;
                        continue;
                    }
                    let left = |units: Result<Tightest, RuleRefused>| {
                        units.map_or_else(|refused| refused.standing, |tightest| tightest.standing).remaining()
                    };
                    let (here, there) = (pair.limiter.peek(at(now)).remaining(), left(rule.peek(at(now), key, 1)));
                    prop_assert!(there == here || (is_bound && there < here), "{there} left of {key:?}, not {here}");
                }
            }
            Ok(())
        },
    );
}

/// After a reservation, too.
#[test]
fn a_credit_after_reservations_is_the_models() {
    for_each_strategy(
        |quotas| (quotas, arrivals(60)),
        |(quota, arrivals)| {
            let mut pair = Pair::new(quota);
            for (arrival, now, cost) in timed(arrivals, quota) {
                let admitted = match arrival.ask {
                    What::Charge => pair.charge(now, cost)?,
                    What::Reserve => pair.reserve(now, cost, arrival.latest(now, quota))?,
                    What::ChargeAndGiveBack | What::ReserveAndGiveBack => {
                        // A limiter takes no larger cost, and gives back no more at once.
                        let units = cost.min(quota.most());
                        pair.limiter.credit(units, || at(now));
                        pair.model.credit(now, units);
                        None
                    }
                };
                if let Some((_, goes)) = admitted {
                    pair.model.charge(now, goes, cost);
                }
                pair.stands(now)?;
            }
            Ok(())
        },
    );
}

proptest! {
    /// A window admits at most its limit and the units that are given back during this window.
    #[test]
    fn a_credit_opens_no_other_window(
        limit in 1..=12_u64,
        steps in prop::collection::vec((0..=12_u64, 0..=600_u64, 0..3_u8), 1..80),
    ) {
        let limiter = Limiter::new(at(START), suite::quota(Counting::FixedWindow, limit, Duration::from_millis(1)));
        let window = |nanos: u64| nanos / 1_000_000;
        let (mut now, mut admitted, mut given_back) = (START, HashMap::new(), HashMap::new());
        for (cost, micros, step) in steps {
            now += micros * 1_000;
            let time = match step {
                0 => limiter.charge(at(now), cost).ok().map(|_| now),
                1 => limiter.reserve(at(now), cost, at(now + 3_000_000)).ok().map(|reserved| reserved.at.as_nanos()),
                _ => {
                    limiter.credit(cost, || at(now));
                    *given_back.entry(window(now)).or_insert(0) += cost;
                    None
                }
            };
            if let Some(time) = time {
                *admitted.entry(window(time)).or_insert(0) += cost;
            }
        }
        for (window, admitted) in admitted {
            let most = limit + given_back.get(&window).copied().unwrap_or(0);
            prop_assert!(admitted <= most, "window {window} admitted {admitted} of {most}");
        }
    }
}

/// A refund at any time gives back at most the charge.
#[test]
fn a_late_refund_gives_no_more_than_was_taken() {
    for_each_strategy(
        |quotas| (quotas, arrivals(60)),
        |(quota, arrivals)| {
            let limiter = Limiter::new(at(START), quota);
            let (mut held, mut kept) = (Vec::<(u64, u64, Charge)>::new(), Vec::new());
            for (arrival, now, cost) in timed(arrivals, quota) {
                if arrival.ask == What::ChargeAndGiveBack && !held.is_empty() {
                    // The refund is often of the latest charge, and sometimes of an earlier charge.
                    let (_, _, charge) =
                        held.swap_remove(held.len() / (1 + arrival.patience as usize % 3).min(held.len()) - 1);
                    limiter.refund(charge, || at(now));
                }
                if let Ok(admitted) = limiter.charge(at(now), cost) {
                    let mut model = Model::new(quota);
                    kept.clear();
                    kept.extend(held.iter().map(|&(at, cost, _)| (at, cost)));
                    kept.sort_unstable();
                    for &(at, cost) in &kept {
                        model.charge(at, at, cost);
                    }
                    prop_assert!(model.admits(now + tolerance(quota), cost), "{cost} at {now} with {kept:?}");
                    held.push((now, cost, admitted.charge));
                }
            }
            Ok(())
        },
    );
}

/// Threads read the clock in one order and decide in another order. They get at most the requests that the latest
/// reading allows.
#[test]
fn late_readers_get_no_more() {
    for_each_strategy(
        |quotas| (quotas, arrivals(60), prop::collection::vec(0..1_500_u64, 60)),
        |(quota, arrivals, lags)| {
            let limiter = Limiter::new(at(START), quota);
            let mut model = Model::new(quota);
            // All admissions so far count at the latest time that any admitted thread has read.
            let mut latest = 0;
            for ((_, now, cost), lag) in timed(arrivals, quota).zip(lags) {
                let lag = (period(quota) / 1_000 * (lag % 500 * (lag / 500))).min(nanos(Duration::from_hours(11)));
                if limiter.charge(at(now - lag), cost).is_ok() {
                    latest = latest.max(now - lag);
                    prop_assert!(model.admits(latest + tolerance(quota), cost), "{cost} at {now} less {lag}");
                    model.charge(latest, latest, cost);
                }
            }
            Ok(())
        },
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_time_and_no_number_makes_it_panic(
        quota in quotas(),
        calls in prop::collection::vec((any::<u64>(), any::<u64>(), 0..6_u8), 1..40),
        base in any::<u64>(),
        other in quotas(),
    ) {
        let mut limiter = Limiter::new(at(base), quota);
        for (now, cost, what) in calls {
            let (now, most) = (at(now), limiter.quota().most());
            let cost = if what % 2 == 0 { cost } else { 1 };
            let decided = if what < 4 {
                limiter.charge(now, cost).map(|admitted| admitted.charge)
            } else {
                let reserved = limiter.reserve(now, cost, at(now.as_nanos().wrapping_mul(5)));
                prop_assert!(reserved.as_ref().is_ok_and(|reserved| reserved.at >= now) || reserved.is_err());
                reserved.map(|reserved| reserved.charge)
            };
            match decided {
                Ok(charge) => {
                    prop_assert!(cost <= most);
                    match what {
                        1 => limiter.refund(charge, || at(now.as_nanos().wrapping_mul(3))),
                        2 => limiter.credit(cost.wrapping_mul(7), || at(now.as_nanos().wrapping_mul(3))),
                        _ => {}
                    }
                }
                Err(refused) => prop_assert!(cost <= most || refused.retry_after().is_none()),
            }
            prop_assert!(limiter.peek(now).remaining() <= most);
            let _ = limiter.peek(now).reset_after();
            if what == 3 {
                limiter = limiter.retune(|| now, if limiter.quota() == quota { other } else { quota });
            }
        }
    }
}

proptest! {
    /// The standing of each decision equals the standing of a peek, which uses a separate path.
    #[test]
    fn an_answer_says_what_a_look_says(
        requests in prop_oneof![1_u64..20, 20_u64..300],
        gaps in prop::collection::vec(prop_oneof![4 => 0_u64..40, 4 => 0_u64..4, 1 => 0_u64..3_000], 1..1_500),
    ) {
        for strategy in Counting::ALL {
            let limiter = Limiter::new(at(START), suite::quota(strategy, requests, Duration::from_micros(1)));
            let mut now = START;
            for gap in &gaps {
                now += gap;
                let said = match limiter.charge(at(now), 1) {
                    Ok(admitted) => state(admitted.standing),
                    Err(refused) => state(refused.standing),
                };
                prop_assert_eq!(said, state(limiter.peek(at(now))), "{:?} of {}", strategy, requests);
            }
        }
    }
}
