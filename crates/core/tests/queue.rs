//! Requests that wait are admitted exactly when possible, in the order of arrival, and never later than promised. No
//! capacity is lost when they leave. The judge stores the history of all admissions and uses only the definitions of
//! the strategies.
#![cfg(not(loom))]

use std::{num::NonZeroUsize, task::Waker, time::Duration};

use weir_core::{Limiter, Position, Quota, RuleLimiter, Strategy, Terms, Ticket, Time};

const START: u64 = 1_700_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;
const STRATEGIES: [Strategy; 7] = Strategy::ALL;

/// Pseudo-random numbers that are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The times and costs of the admissions.
type History = Vec<(u64, u64)>;

/// Checks that a history is within a quota, by the quota's definition. If an emission interval is not a whole number of
/// nanoseconds, a request can be less than two nanoseconds early.
fn judge(quota: Quota, history: &History) -> Result<(), String> {
    let (requests, period) = (u128::from(quota.requests()), quota.period().as_nanos());
    let fail = |at: u64, what: String| Err(format!("{quota:?} at {} ns: {what}", at - START));
    let in_window = |index: u128| -> u128 {
        history.iter().filter(|(at, _)| u128::from(*at) / period == index).map(|(_, cost)| u128::from(*cost)).sum()
    };
    match quota.strategy() {
        Strategy::FixedWindow => {
            for (at, _) in history {
                let sum = in_window(u128::from(*at) / period);
                if sum > requests {
                    return fail(*at, format!("{sum} in a window"));
                }
            }
        }
        Strategy::SlidingWindowCounter => {
            for (index, (at, _)) in history.iter().enumerate() {
                let (window, elapsed) = (u128::from(*at) / period, u128::from(*at) % period);
                let so_far = history[..=index].iter().filter(|(at, _)| u128::from(*at) / period == window);
                let current: u128 = so_far.map(|(_, cost)| u128::from(*cost)).sum();
                let weighted = in_window(window - 1) * (period - elapsed) + current * period;
                if weighted > requests * period {
                    return fail(*at, format!("{weighted} weighted of {}", requests * period));
                }
            }
        }
        Strategy::SlidingWindowLog => {
            for (index, (at, _)) in history.iter().enumerate() {
                let recent = history[..=index].iter().filter(|(then, _)| u128::from(at - then) < period);
                let sum: u128 = recent.map(|(_, cost)| u128::from(*cost)).sum();
                if sum > requests {
                    return fail(*at, format!("{sum} in a period"));
                }
            }
        }
        Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::Gcra => {
            for first in 0..history.len() {
                let mut sum = 0;
                for (at, cost) in &history[first..] {
                    sum += u128::from(*cost);
                    let passed = u128::from(at - history[first].0) + 2;
                    if sum * period > u128::from(quota.most()) * period + requests * passed {
                        return fail(*at, format!("{sum} within {passed} ns"));
                    }
                }
            }
        }
        Strategy::LeakyBucket => {
            for pair in history.windows(2) {
                let [(before, cost), (at, _)] = pair else { unreachable!("two") };
                if u128::from(at - before + 2) * requests < u128::from(*cost) * period {
                    return fail(*at, format!("{} ns behind a cost of {cost}", at - before));
                }
            }
        }
    }
    Ok(())
}

struct Waits {
    ticket: Ticket,
    number: u64,
    cost: u64,
    promised: u64,
    leaves: u64,
    again: u64,
}

/// A rule and the requests that wait for it, on a made-up clock.
struct World {
    rule: RuleLimiter,
    now: u64,
    waiting: Vec<Waits>,
    history: History,
    went: Vec<u64>,
    refused: u64,
    left: u64,
}

impl World {
    fn new(quotas: &[Quota], keyed: bool) -> Self {
        let terms =
            Terms::new(quotas.iter().enumerate().map(|(index, quota)| (index.to_string(), *quota))).expect("valid");
        let rule = if keyed {
            RuleLimiter::keyed(Time::from_nanos(START), terms, NonZeroUsize::new(8).expect("not zero"))
        } else {
            RuleLimiter::unkeyed(Time::from_nanos(START), terms)
        };
        Self { rule, now: START, waiting: Vec::new(), history: Vec::new(), went: Vec::new(), refused: 0, left: 0 }
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    fn goes(&mut self, number: u64, cost: u64) {
        self.history.push((self.now, cost));
        self.went.push(number);
    }

    fn arrive(&mut self, number: u64, cost: u64, patience: u64, leaves_after: Option<u64>) {
        let now = self.time();
        let is_alone = self.rule.queue_len(b"key") == 0;
        if is_alone && self.rule.charge(|| now, b"key", cost).is_ok() {
            return self.goes(number, cost);
        }
        let latest = Some(now.saturating_add(Duration::from_nanos(patience)));
        let promised = self.rule.opens(now, b"key", cost).map_or(u64::MAX, Time::as_nanos);
        match self.rule.enqueue(now, b"key", cost, latest) {
            Ok(ticket) => {
                assert!(promised <= self.now + patience, "the request waits too long");
                let leaves = leaves_after.map_or(u64::MAX, |after| self.now + after);
                self.waiting.push(Waits { ticket, number, cost, promised, leaves, again: self.now });
            }
            Err(refused) => {
                self.refused += 1;
                let back = refused.retry_after().map_or(u64::MAX, |wait| now.saturating_add(wait).as_nanos());
                let overflows = self.rule.opens(now, b"key", cost).is_err();
                assert!(
                    back > self.now + patience || overflows,
                    "refused although its turn comes in time: {refused:?}"
                );
            }
        }
    }

    /// Runs the world until `end`. With `exact`, no request leaves, so each is admitted at exactly the promised
    /// nanosecond.
    fn run_until(&mut self, end: u64, exact: bool) {
        loop {
            let next = self.waiting.iter().map(|waits| waits.again.min(waits.leaves)).min();
            match next {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
            let before = self.waiting.len();
            self.waiting.retain(|waits| waits.leaves > self.now);
            self.left += (before - self.waiting.len()) as u64;
            let mut went = true;
            while went {
                went = false;
                for index in 0..self.waiting.len() {
                    let now = Time::from_nanos(self.now);
                    let waits = &mut self.waiting[index];
                    match waits.ticket.position(now, Waker::noop()) {
                        Position::Head => match self.rule.charge(|| now, b"key", waits.cost) {
                            Ok(_) => {
                                let Waits { number, cost, promised, .. } = self.waiting.remove(index);
                                assert!(self.now <= promised, "promised {promised}, admitted {}", self.now);
                                assert!(!exact || self.now == promised, "promised {promised}, admitted {}", self.now);
                                self.goes(number, cost);
                                went = true;
                                break;
                            }
                            Err(refused) => {
                                let at = now.saturating_add(refused.retry_after().expect("the queue accepted it"));
                                assert!(at > now, "refused with a wait of zero: {refused:?}");
                                waits.ticket.retry_at(at);
                                waits.again = at.as_nanos();
                            }
                        },
                        Position::Behind(_) => waits.again = u64::MAX,
                        Position::Late => panic!("the quota was not changed"),
                    }
                }
            }
        }
        self.now = self.now.max(end);
    }
}

fn quota(numbers: &mut Numbers, strategy: Strategy) -> Quota {
    let bursts =
        !matches!(strategy, Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog);
    let (requests, period) = (3 + numbers.below(12), SECOND / 2 + numbers.below(SECOND));
    let burst = (bursts && numbers.chance(60)).then(|| 2 + numbers.below(8));
    Quota::new(strategy, requests, Duration::from_nanos(period), burst).expect("valid")
}

fn quotas(numbers: &mut Numbers) -> Vec<Quota> {
    let count = 1 + numbers.below(3);
    let strategy = |numbers: &mut Numbers| STRATEGIES[usize::try_from(numbers.below(7)).expect("below 7")];
    (0..count).map(|_| strategy(numbers)).collect::<Vec<_>>().into_iter().map(|one| quota(numbers, one)).collect()
}

fn crowd(seed: u64, leaving_percent: u64) -> World {
    let mut numbers = Numbers(seed * 2 + 1);
    // Similar seeds start with similar numbers.
    for _ in 0..20 {
        numbers.below(2);
    }
    let quotas = quotas(&mut numbers);
    let most = quotas.iter().map(Quota::most).min().expect("one");
    let mut world = World::new(&quotas, numbers.chance(50));
    for number in 0..200 {
        let (cost, patience) = (1 + numbers.below(most.min(3)), SECOND / 10 + numbers.below(5 * SECOND));
        let leaves = numbers.chance(leaving_percent).then(|| numbers.below(3 * SECOND));
        world.arrive(number, cost, patience, leaves);
        let next = world.now + numbers.below(SECOND / 10);
        world.run_until(next, leaving_percent == 0);
    }
    let end = world.now + 100 * SECOND;
    world.run_until(end, leaving_percent == 0);
    assert!(world.waiting.is_empty(), "seed {seed}: {} are never admitted", world.waiting.len());
    for quota in &quotas {
        judge(*quota, &world.history).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
    assert!(world.went.is_sorted(), "seed {seed}: first come, first served: {:?}", world.went);
    world
}

#[test]
fn if_nobody_leaves_all_go_when_it_was_promised() {
    let (mut went, mut refused) = (0, 0);
    for seed in 0..400 {
        let world = crowd(seed, 0);
        (went, refused) = (went + world.went.len(), refused + world.refused);
        assert_eq!(world.went.len() as u64 + world.refused, 200);
    }
    assert!(went > 10_000 && refused > 10_000, "{went} {refused}");
}

#[test]
fn if_some_requests_leave_the_others_go_no_later_and_none_too_many_go() {
    for percent in [10, 50, 90, 99] {
        let mut left = 0;
        for seed in 0..100 {
            left += crowd(seed, percent).left;
        }
        assert!(left > 300, "{percent} %: {left}");
    }
}

/// Requests that stay get the whole limit, although nearly all other requests leave.
#[test]
fn those_who_stay_get_the_limit_and_a_lone_caller_goes_at_once() {
    for strategy in STRATEGIES {
        for percent in [0, 25, 50, 90, 99] {
            let second = Duration::from_secs(1);
            let quota = Quota::new(strategy, 100, second, None).expect("valid");
            let mut numbers = Numbers(77 + percent);
            let mut world = World::new(&[quota], false);
            for number in 0..20_000 {
                let stays = !numbers.chance(percent);
                // The request leaves at a random time of its wait, which can take half a second.
                let leaves = (!stays).then(|| numbers.below(SECOND / 2));
                world.arrive(number, 1, SECOND / 2, leaves);
                let next = world.now + SECOND / 2000;
                world.run_until(next, false);
            }
            let seconds = (world.now - START) / SECOND;
            let share = world.history.len() as f64 / (seconds * 100) as f64;
            assert!(share >= 0.95, "{strategy:?}, {percent} % leave: {share:.3} of the limit");
            world.waiting.clear();
            let alone = world.rule.opens(world.time(), b"key", 1).expect("some time").duration_since(world.time());
            let own =
                world.rule.peek(world.time(), b"key", 1).map_or_else(|no| no.retry_after(), |_| Some(Duration::ZERO));
            assert_eq!(Some(alone), own, "{strategy:?}: a single caller waits for requests that left");
        }
    }
}

/// A thousand waiting requests give up in order of arrival, or in reverse order. With reservations instead of a queue,
/// capacity would be lost.
#[test]
fn a_thousand_who_leave_in_any_order_leave_nothing_behind() {
    for backwards in [false, true] {
        let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None).expect("valid");
        let mut world = World::new(&[quota], false);
        for number in 0..1010 {
            world.arrive(number, 1, 1000 * SECOND, None);
        }
        assert_eq!((world.history.len(), world.waiting.len()), (10, 1000));
        if backwards {
            world.waiting.reverse();
        }
        world.waiting.drain(..).for_each(|waits| drop(waits.ticket));
        assert_eq!(world.rule.opens(world.time(), b"key", 1).expect("soon").as_nanos(), world.now + SECOND / 10);
    }
}

/// The wait of a new request includes the requests that still wait, and not the requests that have left.
#[test]
fn a_newcomer_is_promised_a_place_behind_those_who_stayed() {
    for strategy in [Strategy::Gcra, Strategy::LeakyBucket, Strategy::SlidingWindowLog, Strategy::FixedWindow] {
        let burst = (strategy == Strategy::LeakyBucket).then_some(200);
        let quota = Quota::new(strategy, 10, Duration::from_secs(1), burst).expect("valid");
        let of = |waiting: u64| {
            let mut world = World::new(&[quota], false);
            for number in 0..100 + waiting {
                world.arrive(number, 1, 1000 * SECOND, None);
            }
            world
        };
        let opens = |world: &World| world.rule.opens(world.time(), b"key", 1).expect("some time");
        // Forty more requests arrive, get times far in the future, and leave from the middle.
        let (stayed, mut world) = (of(0), of(40));
        let far = opens(&world);
        world.waiting.drain(3..43);
        assert_eq!(world.waiting.len(), stayed.waiting.len(), "{strategy:?}");
        assert!(opens(&world) < far && opens(&world) == opens(&stayed), "{strategy:?}");
    }
}

#[test]
fn a_raise_brings_all_forward_and_a_cut_tells_those_who_are_too_late() {
    for keyed in [false, true] {
        let quota = |requests| Quota::new(Strategy::Gcra, requests, Duration::from_secs(1), None).expect("valid");
        let terms = |requests| Terms::new([("0", quota(requests))]).expect("valid");
        let mut world = World::new(&[quota(10)], keyed);
        for number in 0..11 {
            world.arrive(number, 1, 2 * SECOND, None);
        }
        let max_keys = keyed.then(|| NonZeroUsize::new(8).expect("not zero"));
        let now = world.time();
        let position = |world: &World, place: usize| world.waiting[place].ticket.position(now, Waker::noop());
        assert!(matches!(position(&world, 9), Position::Behind(_)));
        world.rule = world.rule.retune(|| now, terms(4), max_keys);
        // With four per second, eight of the ten requests can be admitted within two seconds.
        for place in 0..10 {
            assert_eq!(position(&world, place) == Position::Late, place >= 8, "{place}, keyed: {keyed}");
        }
        world.waiting.truncate(8);
        world.rule = world.rule.retune(|| now, terms(100), max_keys);
        let end = START + SECOND / 2;
        world.waiting.iter_mut().for_each(|waits| waits.again = START);
        world.run_until(end, false);
        assert_eq!(world.history.len(), 9, "keyed: {keyed}");
    }
}

/// A task that has a ticket and is never polled again must not block the other tasks.
#[test]
fn a_head_that_does_not_come_is_passed() {
    let quota = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None).expect("valid");
    let mut world = World::new(&[quota], false);
    world.arrive(0, 1, SECOND, None);
    for number in 1..5 {
        world.arrive(number, 1, SECOND, None);
    }
    let sleeper = world.waiting.remove(0);
    let at = |millis: u64| Time::from_nanos(sleeper.promised + SECOND / 50 + millis * 1_000_000);
    let position = |place: usize, at| world.waiting[place].ticket.position(at, Waker::noop());
    // The head is overdue and was called. The requests behind it were also called, and one of them comes.
    assert!(matches!(position(1, at(0)), Position::Behind(_)));
    assert!(matches!(position(1, at(1)), Position::Behind(_)));
    assert_eq!(position(1, at(3)), Position::Head, "all earlier requests were called and did not come");
    // When these requests come back, they are first again.
    assert_eq!(position(0, at(3)), Position::Head);
    assert_eq!(sleeper.ticket.position(at(3), Waker::noop()), Position::Head);
}

/// Reservations of one limiter, as in `x/time/rate`: each request proceeds at the promised time unless the reservation
/// is given back.
#[test]
fn reservations_that_are_given_back_let_none_too_many_go() {
    let mut given_back = 0;
    for seed in 0..700 {
        let mut numbers = Numbers(seed * 2 + 1);
        for _ in 0..20 {
            numbers.below(2);
        }
        let quota = quota(&mut numbers, STRATEGIES[usize::try_from(seed % 7).expect("below 7")]);
        let limiter = Limiter::new(Time::from_nanos(START), quota);
        let (mut now, mut promised, mut history) = (START, Vec::new(), History::new());
        for _ in 0..150 {
            let time = Time::from_nanos(now);
            let cost = 1 + numbers.below(quota.most().min(6));
            if let Ok(reserved) = limiter.reserve(time, cost, Time::from_nanos(now + 5 * SECOND)) {
                promised.push((reserved.at.as_nanos(), cost, reserved.charge));
            }
            if numbers.chance(40) && !promised.is_empty() {
                let index = usize::try_from(numbers.below(promised.len() as u64)).expect("small");
                let (_, _, charge) = promised.remove(index);
                limiter.refund(charge, || time);
                given_back += 1;
            }
            now += numbers.below(SECOND / 5);
            let (went, waits): (Vec<_>, Vec<_>) = promised.into_iter().partition(|(at, _, _)| *at <= now);
            history.extend(went.into_iter().map(|(at, cost, _)| (at, cost)));
            promised = waits;
        }
        history.extend(promised.into_iter().map(|(at, cost, _)| (at, cost)));
        history.sort_unstable();
        judge(quota, &history).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
    assert!(given_back > 10_000, "{given_back}");
}
