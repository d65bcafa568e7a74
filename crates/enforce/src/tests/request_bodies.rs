//! Costs that count the bytes of requests' bodies.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use http_body::{Body, Frame};
use http_body_util::BodyExt;
use proptest::prelude::*;

use super::*;

/// A burst that no test uses up, and a rate that refills nothing.
const PLENTY: u64 = 1_000_000;

fn counting(limit: Value, more: Value) -> Value {
    policy("p", &[rule("r", &[limit], with(json!({"cost": "requestBytes"}), more))])
}

fn plenty() -> Value {
    limit("TokenBucketWithDebt", 10, 86_400_000, json!({"burst": PLENTY, "debt": 0}))
}

/// A limit of 1,000 bytes per second, a burst of 2,000 bytes and a debt of 500 bytes.
fn narrow() -> Value {
    limit("TokenBucketWithDebt", 1000, 1000, json!({"burst": 2000, "debt": 500}))
}

/// The body of a client, in frames of these lengths. A broken body ends with an error.
#[derive(Clone, Debug)]
struct Upload {
    frames: VecDeque<usize>,
    breaks: bool,
}

impl Upload {
    fn of(frames: &[usize]) -> Self {
        Self { frames: frames.iter().copied().collect(), breaks: false }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(match self.frames.pop_front() {
            Some(length) => Some(Ok(Frame::data(vec![b'x'; length].into()))),
            None if std::mem::take(&mut self.breaks) => Some(Err(io::ErrorKind::ConnectionReset.into())),
            None => None,
        })
    }
}

impl Limits {
    /// Sends a body to an app that reads at most this number of frames. Returns the status, and the time in
    /// milliseconds and the length of each piece that the app received.
    async fn upload(&self, body: Upload, reads: usize) -> (u16, Vec<(u64, u64)>) {
        let mut request = Request::builder().method("POST").uri("/").body(body).expect("a request");
        request.extensions_mut().insert(BodyCosts::default());
        let (clock, start) = (self.clock, self.clock.now());
        let (sender, pieces) = std::sync::mpsc::channel();
        let app = tower::service_fn(move |mut request: Request<Upload>| {
            let sender = sender.clone();
            let costs = request.extensions_mut().remove::<BodyCosts>().expect("the extension");
            async move {
                let mut body = match costs.limit(request.into_body(), clock) {
                    Ok(limited) => limited.boxed(),
                    Err(body) => body.boxed(),
                };
                for _ in 0..reads {
                    let Some(Ok(frame)) = body.frame().await else { break };
                    let length = u64::try_from(frame.into_data().expect("data").len()).expect("small");
                    sender.send((millis(clock.now().duration_since(start)), length)).expect("the test listens");
                }
                Ok::<_, Infallible>(Response::new(AppBody::from("ok")))
            }
        });
        let mut service = LimitLayer::new(self.gate(), "weir-agent").layer(app);
        let answer = tower::Service::call(&mut service, request).await.unwrap_or_else(|never| match never {});
        (answer.status().as_u16(), pieces.try_iter().collect())
    }

    /// The units that remain, including the debt.
    fn remaining(&self) -> u64 {
        self.peek().map_or(0, |tightest| tightest.standing.remaining())
    }

    /// The time until a request is admitted.
    fn closed_for(&self) -> Duration {
        self.peek().err().and_then(|refused| refused.retry_after()).unwrap_or_default()
    }

    fn peek(&self) -> Result<weir_core::Tightest, weir_core::RuleRefused> {
        let rules = self.rules.load();
        let limits = rules.policies()[0].rules[0].rates().expect("limits");
        limits.pod_limiter().peek(self.clock.now(), &[], 1)
    }

    /// Decides as the agent's short path does, on a request whose body has this length.
    fn at_once(&self, body: usize) -> Option<Result<u64, u16>> {
        let headers = Headers::Lines(&[]);
        self.gate().decide_at_once("POST", ("/", None), headers, body, |decided| match decided {
            Ok(pass) => {
                let mut headers = http::HeaderMap::new();
                pass.fields.write(&mut headers);
                let text = headers.get("ratelimit").map_or("", |value| value.to_str().expect("text"));
                let left = text.split(";r=").nth(1).and_then(|rest| rest.split(';').next()).unwrap_or("0");
                assert!(pass.follow_up.is_none_or(|follow_up| follow_up.costs.is_empty()), "the body is charged");
                Ok(left.parse().expect("a number"))
            }
            Err(refusal) => Err(refusal.status().as_u16()),
        })
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("short")
}

fn total(pieces: &[(u64, u64)]) -> u64 {
    pieces.iter().map(|(_, length)| length).sum()
}

fn in_paused_time<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(test)
}

proptest! {
    /// The limit is charged the bytes that the app received, and at least 1 for each request: for bodies that end, that
    /// break off, and that the app does not read to the end.
    #[test]
    fn the_charge_is_what_the_app_received(
        uploads in prop::collection::vec(
            (prop::collection::vec(0_usize..5000, 0..6), any::<bool>(), 0_usize..8),
            1..5,
        ),
        shadow in any::<bool>(),
    ) {
        in_paused_time(async {
            let mode = if shadow { json!({"mode": "Shadow"}) } else { json!({}) };
            let limits = Limits::new(&[with(counting(plenty(), json!({})), mode)]);
            let mut expected = PLENTY;
            for (frames, breaks, reads) in uploads {
                let (status, pieces) = limits.upload(Upload { frames: frames.into(), breaks }, reads).await;
                prop_assert_eq!(status, 200);
                expected -= total(&pieces).max(1);
                prop_assert_eq!(limits.remaining(), expected);
            }
            Ok(())
        })?;
    }

    /// A body costs the same whether it has arrived as a whole or arrives in frames.
    #[test]
    fn both_paths_charge_the_same(bodies in prop::collection::vec(0_usize..4000, 1..8), shadow in any::<bool>()) {
        in_paused_time(async {
            let mode = if shadow { json!({"mode": "Shadow"}) } else { json!({}) };
            let policies = [with(counting(plenty(), json!({})), mode)];
            let (whole, framed) = (Limits::new(&policies), Limits::new(&policies));
            for body in bodies {
                prop_assert!(matches!(whole.at_once(body), Some(Ok(_))));
                framed.upload(Upload::of(&[body]), usize::MAX).await;
                prop_assert_eq!(whole.remaining(), framed.remaining());
                prop_assert_eq!(whole.counts(0, 0), framed.counts(0, 0));
            }
            Ok(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_pass_at_the_rate() {
    let limits = Limits::new(&[counting(narrow(), json!({}))]);
    let (status, pieces) = limits.upload(Upload::of(&[5000, 7500]), usize::MAX).await;
    assert_eq!((status, total(&pieces)), (200, 12_500));
    let mut passed = 0;
    for (at, length) in pieces {
        passed += length;
        assert!(passed <= 2500 + at, "{passed} bytes within {at} ms");
        assert!(at <= passed.saturating_sub(2500) + 20, "too late: {passed} bytes at {at} ms");
    }
    // The limit is in debt, so the next request is refused until the debt is repaid.
    assert_eq!(limits.upload(Upload::of(&[1]), 9).await, (429, vec![]));
    assert_eq!(limits.at_once(1), Some(Err(429)));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(limits.upload(Upload::of(&[1]), 9).await, (200, vec![(0, 1)]));
    assert_eq!(limits.counts(0, 0), [2, 2, 0, 0]);
}

/// A client that disconnects while its body waits has paid for the bytes that passed, and for no other byte.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_cut_off_pays_what_passed() {
    for pieces in 1..20 {
        let limits = Limits::new(&[counting(narrow(), json!({}))]);
        let passed = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&passed);
        let clock = limits.clock;
        let mut request = Request::new(Upload::of(&[1700, 100_000]));
        request.extensions_mut().insert(BodyCosts::default());
        let app = tower::service_fn(move |mut request: Request<Upload>| {
            let count = Arc::clone(&count);
            let costs = request.extensions_mut().remove::<BodyCosts>().expect("the extension");
            async move {
                let mut body = costs.limit(request.into_body(), clock).expect("a rule counts it");
                for _ in 0..pieces {
                    let data = body.frame().await.expect("more").expect("a frame").into_data().expect("data");
                    count.fetch_add(data.len() as u64, Relaxed);
                }
                // The next piece is reserved, but has not passed.
                assert!(futures::poll!(body.frame()).is_pending());
                Ok::<_, Infallible>(Response::new(AppBody::from("ok")))
            }
        });
        let mut service = LimitLayer::new(limits.gate(), "weir-agent").layer(app);
        let start = limits.clock.now();
        tower::Service::call(&mut service, request).await.unwrap_or_else(|never| match never {});
        let refilled = i64::try_from(millis(limits.clock.now().duration_since(start))).expect("short");
        let level = 2000 - i64::try_from(passed.load(Relaxed)).expect("small") + refilled;
        // A request is admitted while the limit is overdrawn by less than 500.
        let expected = u64::try_from((1 - 500 - level).max(0)).expect("not negative");
        let closed = millis(limits.closed_for() + Duration::from_micros(999));
        assert!(closed.abs_diff(expected) <= 1, "{pieces} pieces: {closed} ms instead of {expected} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_whole_body_passes_at_once_or_takes_the_other_path() {
    let limits = Limits::new(&[counting(narrow(), json!({}))]);
    assert_eq!(limits.at_once(2501), None, "the body is larger than the burst and the debt");
    assert_eq!((limits.remaining(), limits.counts(0, 0)), (2500, [0; 4]));
    assert_eq!(limits.at_once(600), Some(Ok(2499)), "the header does not depend on the path");
    assert_eq!(limits.remaining(), 1900);
    assert_eq!(limits.at_once(0), Some(Ok(1899)), "a request without a body costs 1");
    assert_eq!(limits.at_once(1900), None);
    assert_eq!(limits.at_once(1899), Some(Ok(1898)));
    assert_eq!((limits.closed_for(), limits.at_once(1)), (Duration::from_millis(1), Some(Err(429))));
    assert_eq!(limits.counts(0, 0), [3, 1, 0, 0]);
}

/// A body that waits for one of its rules is in the queues of all of them.
#[tokio::test(start_paused = true)]
async fn a_whole_body_does_not_overtake_a_body_that_waits() {
    let bytes = json!({"cost": "requestBytes"});
    let slow = rule("slow", &[narrow()], with(bytes.clone(), json!({"match": [{"paths": ["/"]}]})));
    let limits = Limits::new(&[policy("p", &[rule("all", &[plenty()], bytes), slow])]);
    let other = || {
        let headers = Headers::Lines(&[]);
        limits.gate().decide_at_once("POST", ("/other", None), headers, 2, |decided| decided.is_ok())
    };
    assert_eq!(other(), Some(true));
    let mut waiting = Box::pin(limits.upload(Upload::of(&[5000]), usize::MAX));
    assert!(futures::poll!(&mut waiting).is_pending());
    assert!(limits.peek().is_ok(), "there is room");
    assert_eq!(other(), None);
    assert_eq!(total(&waiting.await.1), 5000);
    assert_eq!(other(), Some(true));
}

/// All rules that count the body are charged, or none of them.
#[tokio::test(start_paused = true)]
async fn several_rules_count_a_body_together() {
    let counts =
        |name: &str, limit: Value, more: Value| rule(name, &[limit], with(json!({"cost": "requestBytes"}), more));
    let requests = rule("requests", &[limit("TokenBucket", 5, 86_400_000, json!({}))], json!({}));
    let shadow = counts("shadow", plenty(), json!({"mode": "Shadow"}));
    let rules = [counts("wide", plenty(), json!({})), counts("narrow", narrow(), json!({})), requests, shadow];
    let limits = Limits::new(&[policy("p", &rules)]);
    assert_eq!(limits.at_once(2600), None);
    assert_eq!((limits.remaining(), limits.counts(0, 2)), (PLENTY, [0; 4]), "nothing was charged");
    assert!(matches!(limits.at_once(1000), Some(Ok(_))));
    assert_eq!(limits.upload(Upload::of(&[1000]), 9).await.0, 200);
    let left = |index: usize| {
        let rules = limits.rules.load();
        let of_rule = rules.policies()[0].rules[index].rates().expect("limits");
        of_rule.pod_limiter().peek(limits.clock.now(), &[], 1).map_or(0, |tightest| tightest.standing.remaining())
    };
    assert_eq!([left(0), left(1), left(2), left(3)], [PLENTY - 2000, 500, 3, PLENTY - 2000]);
    assert_eq!([0, 1, 2, 3].map(|rule| limits.counts(0, rule)), [[2, 0, 0, 0]; 4]);
}

/// A rule with a concurrent limit holds its permit until the response has ended, and gives it back if the body must
/// take the other path.
#[tokio::test(start_paused = true)]
async fn a_whole_body_holds_a_permit() {
    let parallel = json!({"name": "c", "action": "Limit", "concurrency": {"name": "parallel", "limit": 1}});
    let bytes = rule("r", &[narrow()], json!({"cost": "requestBytes"}));
    let limits = Limits::new(&[policy("p", &[bytes, parallel])]);
    let in_flight = || limits.rules.load().policies()[0].rules[1].in_flight().expect("a concurrent limit").2;
    assert_eq!((limits.at_once(2501), in_flight()), (None, 0));
    let gate = limits.gate();
    let held = gate.decide_at_once("POST", ("/", None), Headers::Lines(&[]), 10, |decided| decided.expect("admitted"));
    assert_eq!((in_flight(), limits.remaining()), (1, 2490));
    assert_eq!(limits.at_once(10), Some(Err(429)));
    drop(held);
    assert_eq!((in_flight(), limits.remaining()), (0, 2490));
}

/// A request whose body must wait charges no other rule, even while other threads charge this rule.
#[test]
fn a_whole_body_that_must_wait_leaves_no_trace_in_a_log() {
    const MOST: u64 = 20_000;
    let log = rule("log", &[limit("SlidingWindowLog", MOST, 86_400_000, json!({}))], json!({}));
    let slow = rule("slow", &[narrow()], json!({"cost": "requestBytes", "match": [{"paths": ["/large"]}]}));
    let limits = Limits::with_clock(MonotonicClock::start(), &[policy("p", &[log, slow])]);
    let rules = &limits.rules;
    let decide = |path: &str, body: usize| {
        rules
            .gates()
            .of(PEER)
            .decide_at_once("POST", (path, None), Headers::Lines(&[]), body, |decided| decided.is_ok())
    };
    std::thread::scope(|scope| {
        let small = scope.spawn(|| (0..MOST).filter(|_| decide("/", 0) == Some(true)).count());
        while !small.is_finished() {
            assert_ne!(decide("/large", 1_000_000), Some(true));
        }
        assert_eq!(small.join().ok(), usize::try_from(MOST).ok());
    });
    assert_eq!(limits.counts(0, 0)[0], MOST);
}
