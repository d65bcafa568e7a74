//! Requests that cost nothing, because the app answers with the cost 0.
//!
//! The oracle defines each strategy by the times of the requests that cost something, in exact arithmetic. It shares no code
//! with the limiters. If each request is answered before the next one, the limiters admit exactly what the oracle admits. If
//! requests overlap, those that cost something never exceed the definition, and fixed windows admit exactly what the oracle
//! admits when all requests without an answer count.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use futures::{FutureExt, channel::oneshot, future::LocalBoxFuture};
use tokio::time::{advance, sleep};
use weir_store::Backend;

use super::{ended_seats::World, *};

/// The period of all limits, in nanoseconds. A multiple of all numbers of requests.
const PERIOD: u64 = 10_000_000_000;
const STRATEGIES: [&str; 7] = [
    "FixedWindow", "SlidingWindowCounter", "SlidingWindowLog", "TokenBucket", "TokenBucketWithDebt", "LeakyBucket",
    "GCRA",
];

/// The limit of a test, with its numbers for the oracle.
#[derive(Clone, Copy, Debug)]
struct Terms {
    strategy: &'static str,
    requests: u64,
    burst: u64,
    debt: u64,
}

impl Terms {
    fn new(strategy: &'static str, requests: u64) -> Self {
        let (burst, debt) = match strategy {
            "TokenBucketWithDebt" => (3, 2),
            "LeakyBucket" | "GCRA" => (1, 0),
            _ => (requests, 0),
        };
        Self { strategy, requests, burst, debt }
    }

    fn rule(self, most: u64, more: Value) -> Value {
        let numbers = match self.strategy {
            "TokenBucketWithDebt" => json!({"burst": self.burst, "debt": self.debt}),
            "TokenBucket" | "GCRA" => json!({"burst": self.burst}),
            _ => json!({}),
        };
        let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": most}}});
        rule("r", &[limit(self.strategy, self.requests, PERIOD / 1_000_000, numbers)], with(cost, more))
    }

    /// Whether a request may proceed now, after requests at these times with these costs.
    fn admits(self, history: &[(u64, u64)], now: u64) -> bool {
        let sum = |counts: &dyn Fn(u64) -> bool| {
            history.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| *cost).sum::<u64>()
        };
        let window = now / PERIOD;
        match self.strategy {
            "FixedWindow" => sum(&|at| at / PERIOD == window) < self.requests,
            "SlidingWindowCounter" => {
                let (current, previous) = (sum(&|at| at / PERIOD == window), sum(&|at| at / PERIOD + 1 == window));
                let rest = PERIOD - now % PERIOD;
                let used = u128::from(current + 1) * u128::from(PERIOD) + u128::from(previous) * u128::from(rest);
                used <= u128::from(self.requests) * u128::from(PERIOD)
            }
            "SlidingWindowLog" => sum(&|at| at + PERIOD > now) < self.requests,
            _ => {
                // Tokens in parts of `1 / PERIOD`.
                let (full, unit) = (i128::from(self.burst) * i128::from(PERIOD), i128::from(PERIOD));
                let (mut tokens, mut since) = (full, history.first().map_or(now, |first| first.0));
                for (at, cost) in history.iter().copied().chain([(now, 0)]) {
                    tokens = full.min(tokens + i128::from(at - since) * i128::from(self.requests));
                    tokens -= i128::from(cost) * unit;
                    since = at;
                }
                tokens - unit >= -i128::from(self.debt) * unit
            }
        }
    }
}

/// Pseudorandom numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A request that the app has not answered.
struct InFlight<'a> {
    at: u64,
    app: oneshot::Sender<String>,
    answer: LocalBoxFuture<'a, Response<LimitedBody<AppBody>>>,
}

/// Sends a request. Returns `None` if it is refused.
fn arrive(limits: &Limits) -> Option<InFlight<'_>> {
    let (app, units) = oneshot::channel::<String>();
    let units = Rc::new(Cell::new(Some(units)));
    let at = limits.clock.now().as_nanos();
    let request = Request::builder().uri("/").header("x-user", "ann").body(()).expect("a request");
    let answer = limits.send(request, move |_| {
        let units = units.take().expect("one request");
        async move {
            let units = units.await.expect("an answer");
            Response::builder().header("x-units", units).body("ok".into()).expect("a response")
        }
    });
    let mut answer = answer.boxed_local();
    match (&mut answer).now_or_never() {
        Some(refused) => {
            assert_eq!(refused.status(), 429);
            None
        }
        None => Some(InFlight { at, app, answer }),
    }
}

impl InFlight<'_> {
    fn respond(self, units: &str) {
        self.app.send(units.to_owned()).expect("the app waits");
        let answer = self.answer.now_or_never().expect("an answer");
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key("x-units")), (200, false));
    }
}

fn kinds() -> impl Iterator<Item = (Terms, Value)> {
    let terms = STRATEGIES.into_iter().flat_map(|strategy| [2, 5].map(|requests| Terms::new(strategy, requests)));
    terms.flat_map(|terms| [json!({}), json!({"key": [{"header": "x-user"}]})].map(|key| (terms, key)))
}

#[tokio::test(start_paused = true)]
async fn requests_that_cost_nothing_leave_no_trace() {
    for ((terms, key), seed) in kinds().zip(1..) {
        let most = if terms.strategy == "TokenBucketWithDebt" { 9 } else { 1 };
        let limits = Limits::new(&[policy("p", &[terms.rule(most, key.clone())])]);
        let (mut random, mut history, mut refused) = (Random(seed), Vec::new(), 0);
        for step in 0..400 {
            advance(Duration::from_nanos(random.below(PERIOD / 8))).await;
            let now = limits.clock.now().as_nanos();
            let arrived = arrive(&limits);
            assert_eq!(arrived.is_some(), terms.admits(&history, now), "{terms:?} {key}, step {step}: {history:?}");
            let Some(request) = arrived else {
                refused += 1;
                continue;
            };
            let units = ["0", "0", "0", "1", "none", "00", " 4 "][usize::try_from(random.below(7)).expect("small")];
            request.respond(units);
            match units.trim().parse() {
                Ok(0) => {}
                Ok(units) => history.push((now, most.min(units))),
                Err(_) => history.push((now, 1)),
            }
        }
        assert!(refused > 20 && history.len() > 20, "{terms:?}: {refused} refused, {} charged", history.len());
    }
}

#[tokio::test(start_paused = true)]
async fn overlapping_requests_never_exceed_a_limit() {
    for ((terms, key), seed) in kinds().zip(1_000..) {
        let limits = Limits::new(&[policy("p", &[terms.rule(1, key.clone())])]);
        let (mut random, mut in_flight, mut charged) = (Random(seed), Vec::<InFlight<'_>>::new(), Vec::new());
        for step in 0..1_000 {
            advance(Duration::from_nanos(random.below(PERIOD / 16))).await;
            if random.below(2) == 0 && !in_flight.is_empty() {
                let index = random.below(in_flight.len() as u64);
                let request = in_flight.swap_remove(usize::try_from(index).expect("small"));
                match random.below(4) {
                    0 => charged.push((request.at, 1)),
                    1 => {
                        charged.push((request.at, 1));
                        request.respond("1");
                    }
                    _ => request.respond("0"),
                }
                continue;
            }
            let now = limits.clock.now().as_nanos();
            let mut counts: Vec<_> = charged.iter().copied().chain(in_flight.iter().map(|one| (one.at, 1))).collect();
            counts.sort_unstable();
            let (may, arrived) = (terms.admits(&counts, now), arrive(&limits));
            if terms.strategy == "FixedWindow" {
                assert_eq!(arrived.is_some(), may, "{terms:?} {key}, step {step}");
            }
            assert!(may || arrived.is_none(), "{terms:?} {key}, step {step}");
            in_flight.extend(arrived);
        }
        charged.sort_unstable();
        for (index, (at, _)) in charged.iter().enumerate() {
            assert!(terms.admits(&charged[..index], *at), "{terms:?} {key}: {charged:?}");
        }
        assert!(charged.len() > 15, "{terms:?} {key}: {}", charged.len());
    }
}

/// The part of a rule that a store counts.
fn counted() -> Value {
    json!({"shared": {
        "store": "shop/limits", "counters": "shop/p.r", "stamp": 1, "onStoreLoss": "LocalShare", "sharers": 2,
    }})
}

fn app(units: &'static str) -> impl Fn(Request<()>) -> std::future::Ready<Response<AppBody>> + Clone {
    move |_| std::future::ready(Response::builder().header("x-units", units).body("ok".into()).expect("a response"))
}

/// Programs send one request after the other, and only those that cost something count.
#[tokio::test(start_paused = true)]
async fn a_store_gets_the_units_back() {
    for strategy in STRATEGIES {
        let terms = Terms::new(strategy, 5);
        let world = World::before_the_end(Duration::from_secs(9));
        let rules = [terms.rule(1, counted())];
        let programs = [world.program(&rules), world.program(&rules)];
        let mut sent = 0;
        let mut send = async |units: &'static str| {
            sent += 1;
            let answer = programs[sent % 2].send(get("/"), app(units)).await;
            sleep(Duration::from_millis(1)).await;
            answer.status().as_u16()
        };
        for request in 0..40 {
            assert_eq!(send("0").await, 200, "{strategy}, request {request}");
        }
        for request in 0..terms.burst + terms.debt {
            assert_eq!(send("1").await, 200, "{strategy}, request {request} that costs 1");
            if request + 1 < terms.burst + terms.debt {
                assert_eq!(send("0").await, 200, "{strategy}, after request {request}");
            }
        }
        for _ in 0..4 {
            assert_eq!(send("0").await, 429, "{strategy}");
        }
    }
}

/// A unit that comes back admits the request that waits for it, without further delay.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_gets_the_unit() {
    for strategy in STRATEGIES {
        let more = wait(u64::try_from(Duration::from_hours(1).as_millis()).expect("short"));
        let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": 1}}});
        let burst = if strategy.contains("Window") { json!({}) } else { json!({"burst": 1}) };
        let limits =
            Limits::new(&[policy("p", &[rule("r", &[limit(strategy, 1, 1_800_000, burst)], with(cost, more))])]);
        let first = arrive(&limits).expect("admitted");
        let before = limits.clock.now();
        let mut second = limits.send(get("/"), app("0")).boxed_local();
        assert!((&mut second).now_or_never().is_none(), "{strategy}");
        first.respond("0");
        assert_eq!(second.await.status(), 200, "{strategy}");
        assert!(limits.clock.now().duration_since(before) < Duration::from_secs(2), "{strategy}");
        assert_eq!(limits.counts(0, 0)[..3], [2, 0, 0], "{strategy}");
    }
}

/// A rule in shadow mode counts what it would admit, even if its store answers after the app.
#[tokio::test(start_paused = true)]
async fn a_rule_in_shadow_mode_gives_units_back() {
    for (shared, is_slow) in [(json!({}), false), (counted(), false), (counted(), true)] {
        let world = World::before_the_end(Duration::from_secs(9));
        let memory = Arc::clone(&world.memory);
        let terms = Terms::new("FixedWindow", 2);
        let shadow = with(policy("p", &[terms.rule(1, shared.clone())]), json!({"mode": "Shadow"}));
        let limits = world.program_of(&[shadow], move || Ok(Backend::Memory(Arc::clone(&memory))));
        for _ in 0..20 {
            if is_slow {
                // The app answers before the task that asks the store runs.
                arrive(&limits).expect("admitted").respond("0");
            } else {
                limits.send(get("/"), app("0")).await;
            }
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(limits.counts(0, 0), [20, 0, 0, 0], "{shared}, slow: {is_slow}");
        for expected in [[21, 0, 0, 0], [22, 0, 0, 0], [22, 0, 1, 0]] {
            limits.send(get("/"), app("1")).await;
            sleep(Duration::from_millis(1)).await;
            assert_eq!(limits.counts(0, 0), expected, "{shared}, slow: {is_slow}");
        }
    }
}
