//! Limits on the number of requests in flight.

use std::{collections::HashMap, future::pending, time::Duration};

use http::StatusCode;
use http_body_util::BodyExt;
use proptest::prelude::*;

use super::*;
use crate::matching::{FieldLine, Headers};

type InFlight = Response<LimitedBody<AppBody>>;

fn parallel(name: &str, limit: u64, more: Value) -> Value {
    with(json!({"name": name, "action": "Limit", "concurrency": {"name": "parallel", "limit": limit}}), more)
}

fn by_key() -> Value {
    json!({"key": [{"header": "x-key"}]})
}

fn of(key: &str) -> Request<()> {
    Request::builder().uri("/").header("x-key", key).body(()).expect("a request")
}

/// Sends a request, and returns its response if it was admitted. The request is in flight until the response is
/// dropped.
async fn admitted(limits: &Limits, key: &str) -> Option<InFlight> {
    let response = limits.send(of(key), ok).await;
    (response.status() == StatusCode::OK).then_some(response)
}

fn header<'a>(response: &'a InFlight, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().expect("text"))
}

#[tokio::test(start_paused = true)]
async fn a_request_is_in_flight_until_its_body_is_dropped() {
    let limits = Limits::new(&[policy("p", &[parallel("r", 2, by_key())])]);
    let first = admitted(&limits, "ann").await.expect("free");
    assert_eq!(header(&first, "ratelimit-policy"), "\"parallel\";q=2;qu=\"concurrent-requests\"");
    assert_eq!(header(&first, "ratelimit"), "\"parallel\";r=1");
    let second = admitted(&limits, "ann").await.expect("free");
    assert!(admitted(&limits, "bob").await.is_some(), "another key");
    let refused = limits.send(of("ann"), ok).await;
    assert_eq!((refused.status().as_u16(), header(&refused, "retry-after")), (429, "1"));
    assert_eq!(header(&refused, "ratelimit"), "\"parallel\";r=0");
    let body = refused.into_body().collect().await.expect("a body").to_bytes();
    let expected = json!({
        "error": "too many concurrent requests", "policy": "shop/p", "rule": "r", "limit": "parallel",
        "retryAfterSeconds": 1,
    });
    assert_eq!(serde_json::from_slice::<Value>(&body).expect("JSON"), expected);
    drop(first);
    assert!(admitted(&limits, "ann").await.is_some());
    assert_eq!(second.into_body().collect().await.expect("a body").to_bytes(), "ok");
    let both = (admitted(&limits, "ann").await, admitted(&limits, "ann").await);
    assert!(both.0.is_some() && both.1.is_some());
    assert_eq!(limits.counts(0, 0), [6, 1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_gives_its_permit_back() {
    let limits = Limits::new(&[policy("p", &[parallel("r", 1, json!({}))])]);
    let mut unanswered = Box::pin(limits.send(of("ann"), |_| pending()));
    assert!(futures::poll!(&mut unanswered).is_pending());
    assert!(admitted(&limits, "ann").await.is_none());
    drop(unanswered);
    assert!(admitted(&limits, "ann").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_request_in_flight() {
    let hurried = with(policy("p", &[parallel("r", 1, json!({}))]), json!({"deadlineMillis": 100}));
    let limits = Limits::new(&[hurried]);
    let late = limits.send(of("ann"), |_| pending()).await;
    assert_eq!(late.status(), 504);
    assert!(admitted(&limits, "ann").await.is_some());
}

/// Rates and permits are all or none, whichever refuses.
#[tokio::test(start_paused = true)]
async fn a_refused_request_charges_no_rate_and_holds_no_permit() {
    let rate = rule("rate", &[limit("TokenBucket", 3, 86_400_000, json!({}))], json!({}));
    for rules in [[rate.clone(), parallel("r", 1, json!({}))], [parallel("r", 1, json!({})), rate]] {
        let limits = Limits::new(&[policy("p", &rules)]);
        let first = admitted(&limits, "ann").await.expect("free");
        assert!(header(&first, "ratelimit").starts_with("\"l\";r=2;"), "the rate is described");
        for _ in 0..5 {
            assert!(admitted(&limits, "ann").await.is_none());
        }
        drop(first);
        assert!(admitted(&limits, "ann").await.is_some() && admitted(&limits, "ann").await.is_some());
        for _ in 0..5 {
            let refused = limits.send(of("ann"), ok).await;
            assert!(header(&refused, "ratelimit").starts_with("\"l\";r=0;"), "the rate refuses");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_rate_is_in_flight() {
    let slow = rule("slow", &[limit("GCRA", 1, 1000, json!({}))], wait(5_000));
    let limits = Limits::new(&[policy("p", &[slow, parallel("r", 2, json!({}))])]);
    drop(admitted(&limits, "ann").await.expect("free"));
    let mut waits = Box::pin(limits.send(of("ann"), ok));
    assert!(futures::poll!(&mut waits).is_pending());
    let mut leaves = Box::pin(limits.send(of("ann"), ok));
    assert!(futures::poll!(&mut leaves).is_pending());
    assert_eq!(limits.status("/").await, 429, "two wait");
    drop(leaves);
    let response = waits.await;
    assert_eq!(response.status(), 200);
    // The permit passes from the wait to the response.
    let mut second = Box::pin(limits.send(of("ann"), ok));
    assert!(futures::poll!(&mut second).is_pending());
    assert_eq!(limits.status("/").await, 429);
    assert_eq!(limits.counts(0, 1), [2, 2, 0, 0], "a waiting request is not counted before it goes");
    drop((response, second));
    assert_eq!(limits.status("/").await, 200);
}

#[tokio::test(start_paused = true)]
async fn shadow_counts_what_is_in_flight_and_refuses_nothing() {
    let shadow = with(policy("p", &[parallel("r", 2, json!({}))]), json!({"mode": "Shadow"}));
    let rate = rule("rate", &[limit("TokenBucket", 4, 86_400_000, json!({}))], json!({}));
    let limits = Limits::new(&[shadow, policy("q", &[rate])]);
    let mut in_flight = Vec::new();
    for _ in 0..3 {
        in_flight.push(admitted(&limits, "ann").await.expect("shadow"));
    }
    assert_eq!(limits.counts(0, 0), [2, 0, 1, 0]);
    in_flight.clear();
    drop(admitted(&limits, "ann").await.expect("shadow"));
    assert_eq!(limits.counts(0, 0), [3, 0, 1, 0]);
    assert!(admitted(&limits, "ann").await.is_none(), "the rate of the other policy enforces");
    assert_eq!(limits.counts(0, 0), [3, 0, 1, 0], "a refused request is not tried");
}

#[tokio::test(start_paused = true)]
async fn a_changed_limit_counts_the_requests_in_flight() {
    let limits = Limits::new(&[policy("p", &[parallel("r", 3, by_key())])]);
    let first = admitted(&limits, "ann").await.expect("free");
    let second = admitted(&limits, "ann").await.expect("free");
    limits.apply(&[policy("p", &[parallel("r", 2, by_key())])]);
    assert!(admitted(&limits, "ann").await.is_none());
    drop(first);
    let third = admitted(&limits, "ann").await.expect("free");
    // Deleted and created again: the same requests are in flight.
    limits.apply(&[]);
    limits.apply(&[with(policy("p", &[parallel("r", 2, by_key())]), json!({"uid": "again"}))]);
    assert!(admitted(&limits, "ann").await.is_none());
    drop((second, third));
    assert!(admitted(&limits, "ann").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn keys_with_an_override_have_their_own_limit() {
    let others =
        json!({"concurrency": {"name": "parallel", "limit": 1, "overrides": [{"keys": [["gold"]], "limit": 2}]}});
    let limits = Limits::new(&[policy("p", &[parallel("r", 1, with(by_key(), others))])]);
    let gold = (admitted(&limits, "gold").await, admitted(&limits, "gold").await);
    assert!(gold.0.is_some() && gold.1.is_some());
    let refused = limits.send(of("gold"), ok).await;
    assert_eq!(header(&refused, "ratelimit-policy"), "\"parallel\";q=2;qu=\"concurrent-requests\"");
    let tin = admitted(&limits, "tin").await;
    assert!(tin.is_some() && admitted(&limits, "tin").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_takes_as_much_as_its_cost() {
    let cost = json!({"cost": {"requestHeader": {"name": "x-cost", "most": 10}}});
    let limits = Limits::new(&[policy("p", &[parallel("r", 5, cost)])]);
    let send = |cost: &str| {
        let request = Request::builder().uri("/").header("x-cost", cost).body(()).expect("a request");
        limits.send(request, ok)
    };
    let heavy = send("4").await;
    assert_eq!((send("2").await.status().as_u16(), send("1").await.status().as_u16()), (429, 200));
    drop(heavy);
    let never = send("6").await;
    assert_eq!((never.status().as_u16(), limits.counts(0, 0)), (429, [2, 2, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn the_short_path_decides_and_explains_alike() {
    let limits = Limits::new(&[policy("p", &[parallel("r", 1, by_key())])]);
    let gate = limits.gate();
    let lines = [FieldLine { name: b"x-key", value: b"ann" }];
    let decide = || {
        let decided =
            gate.decide_at_once("GET", ("/", None), Headers::Lines(&lines), 0, |decided| decided.map_err(drop));
        decided.expect("no store is asked")
    };
    let explain = || {
        let request: weir_wire::ExplainRequest =
            serde_json::from_value(json!({"method": "GET", "target": "/", "headers": [["x-key", "ann"]]}))
                .expect("valid");
        let reply = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Refuse).expect("valid");
        let limit = reply.rules[0].limit.as_ref().expect("a limit");
        (reply.decision, limit.name.clone(), limit.remaining)
    };
    assert_eq!(explain(), (weir_wire::Decision::Allow, "parallel".to_owned(), 1));
    let held = decide().expect("free").follow_up.expect("the permit");
    assert_eq!(held.permits.len(), 1);
    assert_eq!(explain(), (weir_wire::Decision::Limit, "parallel".to_owned(), 0));
    assert!(decide().is_err());
    drop(held);
    assert!(decide().is_ok());
}

#[test]
fn a_rate_is_not_part_of_the_same_rule() {
    let faults = |rule: Value| {
        let policies = [policy("p", &[rule])];
        let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": policies});
        let snapshot: weir_wire::Snapshot = serde_json::from_value(snapshot).expect("a snapshot");
        let faults = lower(&snapshot).err().unwrap_or_default();
        faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>()
    };
    let rate = limit("GCRA", 1, 1000, json!({}));
    let keyed = with(by_key(), json!({"maxKeys": 9}));
    let overrides = |limit: u64| json!({"concurrency": {"name": "n", "limit": 1, "overrides": [{"keys": [["a"]], "limit": limit}]}});
    for (more, path) in [
        (json!({"limits": [rate]}), "limits"),
        (json!({"per": "Message"}), "per"),
        (json!({"cost": "responseBytes"}), "cost"),
        (wait(5), "onLimit.maxWaitMillis"),
        (keyed, "maxKeys"),
        (json!({"concurrency": {"name": "n", "limit": 0}}), "concurrency.limit"),
        (json!({"concurrency": {"name": "No", "limit": 1}}), "concurrency.name"),
        (overrides(1), "concurrency.overrides"),
        (with(by_key(), overrides(0)), "concurrency.overrides[0].limit"),
        (json!({"cost": {"fixed": 2}}), "cost.fixed"),
    ] {
        assert_eq!(faults(parallel("r", 1, more.clone())), [format!("policies[0].rules[0].{path}")], "{more}");
    }
    assert_eq!(
        faults(with(parallel("r", 1, json!({})), json!({"action": "Deny"}))),
        ["policies[0].rules[0].concurrency"]
    );
    assert_eq!(faults(json!({"name": "r", "action": "Limit"})), ["policies[0].rules[0].limits"]);
}

/// What happens to the requests of a random run.
#[derive(Clone, Debug)]
enum Event {
    Send {
        key: u8,
        answered: bool,
    },
    /// The client of one of the requests in flight leaves, or has got its whole response.
    End(usize),
    Change {
        limit: u64,
    },
    Pass,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..3_u8, any::<bool>()).prop_map(|(key, answered)| Event::Send { key, answered }),
        4 => any::<usize>().prop_map(Event::End),
        1 => (1..5_u64).prop_map(|limit| Event::Change { limit }),
        1 => Just(Event::Pass),
    ]
}

proptest! {
    /// The oracle counts on its own what is in flight.
    #[test]
    fn in_flight_is_what_was_admitted_and_has_not_ended(events in prop::collection::vec(event(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let rules = |limit| [policy("p", &[parallel("r", limit, by_key())])];
            let limits = Limits::new(&rules(2));
            let (mut limit, mut counts) = (2, HashMap::<u8, u64>::new());
            let mut unanswered = Vec::new();
            let mut answered: Vec<(u8, InFlight)> = Vec::new();
            for event in events {
                match event {
                    Event::Send { key, answered: answers } => {
                        let count = counts.entry(key).or_default();
                        let expected = *count < limit;
                        *count += u64::from(expected);
                        let name = key.to_string();
                        if answers {
                            let response = admitted(&limits, &name).await;
                            assert_eq!(response.is_some(), expected);
                            answered.extend(response.map(|response| (key, response)));
                        } else {
                            let mut sent = Box::pin(limits.send(of(&name), |_| pending()));
                            let polled = futures::poll!(&mut sent);
                            assert_eq!(polled.is_pending(), expected);
                            if expected {
                                unanswered.push((key, sent));
                            }
                        }
                    }
                    Event::End(index) if answered.len() + unanswered.len() > 0 => {
                        let index = index % (answered.len() + unanswered.len());
                        let key = if index < answered.len() {
                            answered.swap_remove(index).0
                        } else {
                            unanswered.swap_remove(index - answered.len()).0
                        };
                        *counts.get_mut(&key).expect("it was counted") -= 1;
                    }
                    Event::End(_) => {}
                    Event::Change { limit: next } => {
                        limit = next;
                        limits.apply(&rules(limit));
                    }
                    Event::Pass => tokio::time::sleep(Duration::from_secs(100)).await,
                }
            }
        });
    }
}

/// Two rules set a header of the same name. Both paths send it once, with the value of the later rule.
#[tokio::test(start_paused = true)]
async fn a_header_of_two_rules_is_sent_once_on_both_paths() {
    let own = |value: &str| json!({"responseHeaders": [{"name": "x-left", "value": value}, {"name": format!("x-{value}"), "value": "1"}]});
    let rate = |more: Value| rule("rate", &[limit("TokenBucket", 100, 86_400_000, json!({}))], with(own("rate"), more));
    let quiet = json!({"onLimit": {"status": 429, "headers": "IETF", "headersOn": "Refusals"}});
    for (rules, described) in [
        (vec![rate(json!({})), parallel("r", 9, own("parallel"))], "\"l\";r="),
        (vec![rate(quiet), parallel("r", 9, own("parallel"))], "\"parallel\";r="),
        (vec![parallel("q", 9, own("rate")), parallel("r", 9, own("parallel"))], "\"parallel\";r="),
    ] {
        let limits = Limits::new(&[policy("p", &rules)]);
        let response = admitted(&limits, "ann").await.expect("free");
        let count = |name: &str| response.headers().get_all(name).iter().count();
        assert_eq!((count("x-left"), count("x-rate"), count("x-parallel")), (1, 1, 1));
        assert_eq!(header(&response, "x-left"), "parallel");
        assert!(header(&response, "ratelimit").starts_with(described), "{:?}", response.headers());

        let lines = limits.gate().decide_at_once("GET", ("/", None), Headers::Lines(&[]), 0, |decided| {
            let mut lines = Vec::new();
            decided.map_err(drop).expect("free").fields.append_to(&mut lines);
            String::from_utf8(lines).expect("text")
        });
        let lines = lines.expect("decided immediately");
        let sent = |name: &str| lines.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
        assert_eq!((sent("x-left"), sent("x-rate").len(), sent("x-parallel").len()), (vec!["x-left: parallel"], 1, 1));
        assert_eq!(sent("ratelimit:").len(), 1);
        assert!(sent("ratelimit:")[0].starts_with(&format!("ratelimit: {described}")), "{lines}");
    }
}

/// A request whose turn would come after the deadline of any matching policy is refused immediately.
#[tokio::test(start_paused = true)]
async fn the_deadline_of_a_concurrent_rule_bounds_the_wait_for_a_rate() {
    let hurried = with(policy("p", &[parallel("r", 9, json!({}))]), json!({"deadlineMillis": 100}));
    let slow = policy("q", &[rule("slow", &[limit("GCRA", 1, 3_000, json!({}))], wait(5_000))]);
    let limits = Limits::new(&[hurried, slow]);
    assert_eq!(limits.status("/").await, 200);
    let start = tokio::time::Instant::now();
    assert_eq!((limits.status("/").await, start.elapsed()), (429, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn two_concurrent_rules_admit_together_or_not_at_all() {
    let limits = Limits::new(&[policy("p", &[parallel("wide", 3, json!({})), parallel("narrow", 1, by_key())])]);
    let first = admitted(&limits, "ann").await.expect("free");
    for _ in 0..5 {
        assert!(admitted(&limits, "ann").await.is_none(), "the narrow rule refuses");
    }
    let others = (admitted(&limits, "bob").await, admitted(&limits, "eve").await);
    assert!(others.0.is_some() && others.1.is_some(), "refused requests hold no permit of the wide rule");
    assert!(admitted(&limits, "dan").await.is_none(), "the wide rule refuses");
    drop(first);
    assert!(admitted(&limits, "dan").await.is_some());
    assert_eq!((limits.counts(0, 0), limits.counts(0, 1)), ([4, 1, 0, 0], [4, 5, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn responses_without_a_body_and_failures_end_the_request() {
    let limits = Limits::new(&[policy("p", &[parallel("r", 1, json!({}))])]);
    for status in [204, 304, 500, 502] {
        let response = limits
            .send(of("ann"), move |_| async move {
                let mut response = Response::new("".into());
                *response.status_mut() = StatusCode::from_u16(status).expect("a status");
                response
            })
            .await;
        assert_eq!(response.status(), status);
        drop(response);
    }
    assert_eq!(limits.counts(0, 0), [4, 0, 0, 0]);
}
