//! Floods of made-up keys. A full table serves every well-behaved client, and no key gets more than its limit.
//!
//! The judge uses the whole history of each key and the definitions of the strategies, without the arithmetic of the
//! crate; see [`Histories::is_within`].
#![cfg(not(loom))]

mod suite;

use std::{collections::HashMap, time::Duration};

use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};

use self::suite::{STRATEGIES, is_window, keys, quota};

/// The start of a window, for each period in these tests.
const START: u64 = 1_800_000_000_000_000_000;

/// A period that is divisible by the numbers of requests in these tests.
const PERIOD: u64 = 60_000_000_000;

/// The times and costs of the admissions of each key.
#[derive(Default)]
struct Histories(HashMap<u64, Vec<(u64, u64)>>);

impl Histories {
    /// Returns true if the definition of a limit admits one more request of a key after all its admissions.
    fn is_within(&self, quota: &Quota, key: u64, now: u64, cost: u64) -> bool {
        let history = self.0.get(&key).map_or(&[][..], Vec::as_slice);
        let (requests, period) = (u128::from(quota.requests()), quota.period().as_nanos());
        let most = u128::from(quota.burst() + quota.debt());
        let (now, cost) = (u128::from(now), u128::from(cost));
        let earlier = || history.iter().rev().map(|&(at, cost)| (u128::from(at), u128::from(cost)));
        let in_window =
            |window: u128| -> u128 { earlier().filter(|&(at, _)| at / period == window).map(|(_, cost)| cost).sum() };
        match quota.strategy() {
            Strategy::FixedWindow => in_window(now / period) + cost <= requests,
            Strategy::SlidingWindowCounter => {
                let previous = in_window(now / period - 1) * (period - now % period);
                previous + (in_window(now / period) + cost) * period <= requests * period
            }
            Strategy::SlidingWindowLog => {
                let young: u128 = earlier().filter(|&(at, _)| at + period > now).map(|(_, cost)| cost).sum();
                young + cost <= requests
            }
            // In any span of time, at most the burst plus the flow of this time is admitted.
            Strategy::TokenBucket | Strategy::Gcra | Strategy::TokenBucketWithDebt => {
                let mut sum = cost;
                cost <= most
                    && earlier().all(|(at, cost)| {
                        sum += cost;
                        sum * period <= most * period + requests * (now - at)
                    })
            }
            // All earlier requests have had their turn.
            Strategy::LeakyBucket => {
                let mut sum = 0;
                earlier().all(|(at, cost)| {
                    sum += cost;
                    sum * period <= requests * (now - at)
                })
            }
        }
    }

    fn add(&mut self, key: u64, now: u64, cost: u64) {
        self.0.entry(key).or_default().push((now, cost));
    }
}

/// Pseudo-random numbers that are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A rule, the admissions of each key, and the number of well-behaved requests that were served.
struct Scene {
    rule: RuleLimiter,
    quotas: Vec<Quota>,
    histories: Histories,
    asked: u64,
    served: u64,
}

impl Scene {
    fn new(quotas: &[Quota], max_keys: usize) -> Self {
        let rule = RuleLimiter::keyed(Time::from_nanos(START), terms(quotas), keys(max_keys));
        Self { rule, quotas: quotas.to_vec(), histories: Histories::default(), asked: 0, served: 0 }
    }

    fn may(&self, key: u64, now: u64, cost: u64) -> bool {
        self.quotas.iter().all(|quota| self.histories.is_within(quota, key, now, cost))
    }

    /// Sends one request. Asserts that no key gets more than its limits.
    fn send(&mut self, key: u64, now: u64, cost: u64) -> bool {
        let time = Time::from_nanos(now);
        let peeked = self.rule.peek(time, &key.to_be_bytes(), cost).is_ok();
        let admitted = self.rule.charge(|| time, &key.to_be_bytes(), cost).is_ok();
        assert_eq!(peeked, admitted, "{:?}: key {key}: peek disagrees", self.quotas);
        if admitted {
            assert!(self.may(key, now, cost), "{:?}: key {key} got more than its limit at {now}", self.quotas);
            self.histories.add(key, now, cost);
        }
        admitted
    }

    /// Sends a request of a client that sends only requests within its limits. Returns true if the client can continue:
    /// it does not immediately repeat a refused request.
    fn behave(&mut self, key: u64, now: u64, cost: u64) -> bool {
        if !self.may(key, now, cost) {
            return false;
        }
        self.asked += 1;
        let served = self.send(key, now, cost);
        self.served += u64::from(served);
        served
    }
}

/// Returns the share of well-behaved requests that were served, over several scenes.
///
/// Each table places its keys by its own random secrets. In a small table one unlucky client is more than one request
/// in a hundred, so the share over a single scene of 30 requests would be meaningless.
fn share_over(scenes: impl Iterator<Item = Scene>) -> f64 {
    let (mut asked, mut served) = (0, 0);
    for scene in scenes {
        (asked, served) = (asked + scene.asked, served + scene.served);
        if asked >= 1_000 {
            break;
        }
    }
    served as f64 / asked as f64
}

fn terms(quotas: &[Quota]) -> Terms {
    const NAMES: [&str; 3] = ["first", "second", "third"];
    Terms::new(NAMES.into_iter().zip(quotas.iter().copied())).expect("valid")
}

/// Returns the time for which a request of this cost counts.
fn life(quota: &Quota, cost: u64) -> u64 {
    if is_window(quota.strategy()) { PERIOD } else { PERIOD / quota.requests() * cost }
}

/// Runs a flood of made-up keys: `crowds` times as many as the table has cells, all within the time for which a request
/// counts. Known clients and new clients send all requests that their limits allow, first together and then over time.
fn flood(quotas: &[Quota], max_keys: usize, crowds: u64, cost: u64, seed: u64) -> Scene {
    let mut scene = Scene::new(quotas, max_keys);
    let mut dice = Dice(seed);
    let known = max_keys as u64 / 4;
    for client in 0..known {
        scene.behave(client, START, 1);
    }
    let life = quotas.iter().map(|quota| life(quota, cost)).max().expect("a limit");
    let burst = quotas.iter().map(Quota::requests).min().expect("a limit");
    let steps = crowds * max_keys as u64;
    let (mut made_up, mut newcomer) = (1 << 40, 1 << 20);
    for step in 0..4 * steps {
        // A random time within the step. The overflow rounds the ages in a log to an 8,192th of a period, so it can
        // refuse a client that arrives in the same nanosecond in which an entry ends.
        let now = START + life + life * step / steps + dice.below(life / steps);
        made_up += 1;
        scene.send(made_up, now, cost);
        // Each known client sends about three times in the time for which a request counts.
        if dice.below(steps) < 3 * known {
            let client = dice.below(known);
            let requests = 1 + dice.below(burst);
            for _ in 0..requests {
                if !scene.behave(client, now, 1) {
                    break;
                }
            }
        }
        if dice.below(steps) < known {
            newcomer += 1;
            for _ in 0..burst {
                if !scene.behave(newcomer, now, 1) {
                    break;
                }
            }
        }
        // Some keys send more than their limit.
        if dice.below(50) == 0 {
            scene.send(made_up - dice.below(steps.min(1_000)), now, 1);
        }
    }
    scene
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn clients_that_behave_well_are_served_in_a_flood_by_every_strategy() {
    for strategy in STRATEGIES {
        for crowds in [1, 4, 16] {
            // CI also runs this test in release mode, with larger tables.
            let (large, middle) = if cfg!(debug_assertions) { (100, 90) } else { (500, 300) };
            for (requests, max_keys) in [(1, large), (5, middle), (12, 64), (5, 7)] {
                for cost in [1, requests] {
                    let quota = quota(strategy, requests, Duration::from_nanos(PERIOD));
                    let case = format!("{strategy:?} {requests}, {max_keys} keys x {crowds} of cost {cost}");
                    let share = share_over((crowds + requests..).map(|seed| {
                        let scene = flood(&[quota], max_keys, crowds, cost, seed);
                        let keys = scene.rule.keys().expect("keyed");
                        assert!(keys.tracked <= max_keys as u64 && keys.overflowed > 0, "{case}: {keys:?}");
                        scene
                    }));
                    assert!(share >= 0.99, "{case}: {share}");
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_flood_closes_none_of_several_limits() {
    let limit = |strategy, requests| quota(strategy, requests, Duration::from_nanos(PERIOD));
    for (seed, quotas) in (0..).zip([
        [limit(Strategy::TokenBucket, 5), limit(Strategy::SlidingWindowCounter, 10)].as_slice(),
        &[limit(Strategy::SlidingWindowLog, 3), limit(Strategy::FixedWindow, 4)],
        &[limit(Strategy::Gcra, 12), limit(Strategy::SlidingWindowLog, 1), limit(Strategy::LeakyBucket, 6)],
    ]) {
        for crowds in [4, 16] {
            let share = share_over((seed..).step_by(3).map(|seed| flood(quotas, 100, crowds, 1, seed)));
            assert!(share >= 0.99, "{quotas:?} x {crowds}: {share}");
        }
    }
}

/// More keys than places: many requests are refused, and no key gets more than its limit.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn in_a_flood_without_measure_no_key_gets_more_than_its_limit() {
    for strategy in STRATEGIES {
        for (requests, seed) in [(1, 1), (2, 2), (7, 3)] {
            let quota = quota(strategy, requests, Duration::from_nanos(PERIOD));
            let share = share_over((seed..).step_by(3).map(|seed| flood(&[quota], 10, 64, requests, seed)));
            assert!(share > 0.1, "{strategy:?} {requests}: {share}");
            let mut scene = flood(&[quota], 10, 64, requests, seed);
            let mut dice = Dice(seed);
            // The same keys arrive repeatedly, so many of them have lost their places before.
            for turn in 0..40_000 {
                let now = START + 6 * PERIOD + turn * PERIOD / 2_000;
                scene.send(dice.below(900), now, 1 + dice.below(requests));
            }
        }
    }
}

/// The size of the table changes during a flood, and the overflow moves to each new table.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_flood_goes_through_retunes() {
    for strategy in STRATEGIES {
        for (requests, sizes) in [(1, [100, 101, 100]), (5, [100, 80, 120]), (3, [4_200, 4_000, 9_000])] {
            let quota = quota(strategy, requests, Duration::from_nanos(PERIOD));
            let share = share_over((requests..).map(|seed| {
                let mut scene = Scene::new(&[quota], sizes[0]);
                let mut dice = Dice(seed);
                let crowd = 16 * 80;
                let mut size = sizes.into_iter().cycle();
                for turn in 0..4 * crowd {
                    let now = START + turn * life(&quota, 1) / crowd;
                    scene.send((1 << 40) + turn, now, 1);
                    scene.behave(dice.below(100), now, 1 + dice.below(requests));
                    if turn % 499 == 0 {
                        let time = Time::from_nanos(now);
                        let max_keys = Some(keys(size.next().expect("a cycle")));
                        scene.rule = scene.rule.retune(|| time, terms(&[quota]), max_keys);
                    }
                }
                scene
            }));
            assert!(share >= 0.99, "{strategy:?} {requests}, {sizes:?}: {share}");
        }
    }
}

/// The usage of a key moves with the key to other terms, so it never gets more than the larger of two limits.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn no_retune_refills_the_overflow() {
    for strategy in STRATEGIES {
        for (requests, seed) in [(2, 1), (6, 2)] {
            let limit = |requests| quota(strategy, requests, Duration::from_nanos(PERIOD));
            let (small, large) = (limit(requests), limit(2 * requests));
            let mut scene = Scene::new(&[large], 5);
            let mut dice = Dice(seed);
            for turn in 0..6_000 {
                let now = START + turn * PERIOD / 1_000;
                scene.send(dice.below(if seed == 1 { 60 } else { 300 }), now, 1 + dice.below(2));
                if turn % 61 == 0 {
                    let quota = if turn % 2 == 0 { small } else { large };
                    let time = Time::from_nanos(now);
                    let max_keys = keys(if turn % 3 == 0 { 5 } else { 6 });
                    scene.rule = scene.rule.retune(|| time, terms(&[quota]), Some(max_keys));
                }
            }
        }
    }
}

/// After a refund, a key can use the same number of requests again, and not more.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_refund_in_the_overflow_gives_no_more_than_was_charged() {
    for strategy in STRATEGIES {
        for seed in 1..4 {
            let quota = quota(strategy, 2 * seed, Duration::from_nanos(PERIOD));
            let mut scene = Scene::new(&[quota], 3);
            let (mut dice, mut pending) = (Dice(seed), Vec::new());
            for turn in 0..20_000 {
                let now = START + turn * PERIOD / 900;
                let time = Time::from_nanos(now);
                let (key, cost) = (dice.below(if seed == 3 { 800 } else { 40 }), 1 + dice.below(2));
                if let Ok(admitted) = scene.rule.charge(|| time, &key.to_be_bytes(), cost) {
                    assert!(scene.may(key, now, cost), "{strategy:?}: key {key} got more than its limit");
                    scene.histories.add(key, now, cost);
                    pending.push((key, now, cost, admitted.charge));
                }
                if dice.below(4) == 0 && !pending.is_empty() {
                    let place = usize::try_from(dice.below(pending.len() as u64)).expect("small");
                    let (key, at, cost, charge) = pending.swap_remove(place);
                    scene.rule.refund(&key.to_be_bytes(), charge, || time);
                    let history = scene.histories.0.get_mut(&key).expect("it was charged");
                    let place = history.iter().rposition(|&charge| charge == (at, cost)).expect("it was charged");
                    history.remove(place);
                }
                pending.retain(|&(_, at, ..)| at + PERIOD / 4 > now);
            }
        }
    }
}

/// A key in the overflow gets a cell when none of its requests count, and then has no second burst.
#[test]
fn a_key_that_moves_into_a_cell_has_no_second_burst() {
    for strategy in STRATEGIES {
        let quota = quota(strategy, 5, Duration::from_nanos(PERIOD));
        let mut scene = Scene::new(&[quota], 1);
        let (ann, bob) = (1, 2);
        assert!(scene.send(ann, START, 1));
        for _ in 0..6 {
            scene.send(bob, START + PERIOD / 2, 1);
        }
        let mut moved = false;
        for turn in 0..300 {
            // Each admission is within the limit, according to the whole history.
            scene.send(bob, START + PERIOD / 2 + turn * PERIOD / 100, 1);
            if turn == 299 {
                let later = START + 10 * PERIOD;
                assert!(scene.send(bob, later, 1));
                let keys = scene.rule.keys().expect("keyed");
                moved = (keys.tracked, keys.evicted) == (1, 1);
            }
        }
        assert!(moved, "{strategy:?}: an idle key gets no cell");
    }
}
