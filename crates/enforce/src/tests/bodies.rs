//! Costs that the response supplies.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use http_body::Body;
use http_body_util::BodyExt;

use super::*;

/// A policy that allows 1000 bytes per second, a burst of 2000 bytes and a debt of 500 bytes.
fn bandwidth(more: Value) -> Value {
    let limit = limit("TokenBucketWithDebt", 1000, 1000, json!({"burst": 2000, "debt": 500}));
    policy("p", &[rule("r", &[limit], with(json!({"cost": "responseBytes"}), more))])
}

async fn body(request: Request<()>) -> Response<AppBody> {
    let length: usize = request.uri().path()[1..].parse().expect("a number of bytes");
    Response::new(vec![b'x'; length].into())
}

/// Reads a body to its end. Returns the time in milliseconds and the length of each piece.
async fn read(limits: &Limits, body: LimitedBody<AppBody>) -> Vec<(u64, usize)> {
    let start = limits.clock.now();
    let mut body = body;
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        let length = frame.expect("a frame").into_data().expect("data").len();
        pieces.push((u64::try_from(limits.clock.now().duration_since(start).as_millis()).expect("short"), length));
    }
    pieces
}

#[tokio::test(start_paused = true)]
async fn bytes_pass_at_the_rate() {
    let limits = Limits::new(&[bandwidth(json!({}))]);
    let response = limits.send(get("/12500"), body).await;
    assert_eq!(response.body().size_hint().exact(), Some(12_500), "a counted body has an exact length, too");
    let policy = response.headers()["ratelimit-policy"].to_str().expect("text");
    assert!(policy.ends_with(";q=1000;w=1;qu=\"content-bytes\""), "{policy}");
    let pieces = read(&limits, response.into_body()).await;
    assert_eq!(pieces.iter().map(|(_, length)| length).sum::<usize>(), 12_500);
    let mut passed = 0;
    for (at, length) in pieces {
        passed += length as u64;
        assert!(passed <= 2500 + at, "{passed} bytes within {at} ms");
        assert!(at <= passed.saturating_sub(2500) + 20, "too late: {passed} bytes at {at} ms");
    }
    // The limit is in debt, so the next request is refused until the debt is repaid.
    assert_eq!(limits.send(get("/1"), body).await.status(), 429);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(limits.send(get("/1"), body).await.status(), 200);
    assert_eq!(limits.counts(0, 0), [2, 1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn two_bodies_share_the_rate() {
    let limits = Limits::new(&[bandwidth(json!({}))]);
    let (one, other) = (limits.send(get("/5000"), body).await, limits.send(get("/5000"), body).await);
    let (one, other) = tokio::join!(read(&limits, one.into_body()), read(&limits, other.into_body()));
    let mut all = [one, other].concat();
    all.sort_unstable();
    let mut passed = 0;
    for (at, length) in all {
        passed += length as u64;
        assert!(passed <= 2500 + at, "{passed} bytes within {at} ms");
    }
    assert_eq!(passed, 10_000);
}

/// The first body has reserved capacity in 4.8 hours. With 1 unit per day it cannot, because a reservation reaches at most
/// twelve hours ahead.
#[tokio::test(start_paused = true)]
async fn a_higher_limit_lets_bodies_pass_that_wait() {
    let of = |requests| {
        let limit = limit("TokenBucketWithDebt", requests, 86_400_000, json!({"burst": 1000}));
        [policy("p", &[rule("r", &[limit], json!({"cost": "responseBytes"}))])]
    };
    for before in [10, 1] {
        let limits = Limits::new(&of(before));
        let (mut one, mut other) = (limits.send(get("/2000"), body).await, limits.send(get("/2000"), body).await);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut passed = 0;
        for body in [one.body_mut(), other.body_mut()] {
            while let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(&mut context) {
                passed += frame.expect("a frame").expect("no error").into_data().expect("data").len() as u64;
            }
        }
        // 1000 bytes per second.
        limits.apply(&of(86_400_000));
        let (one, other) = tokio::join!(read(&limits, one.into_body()), read(&limits, other.into_body()));
        let mut all = [one, other].concat();
        all.sort_unstable();
        for (at, length) in all {
            passed += length as u64;
            assert!(passed <= 1000 + at, "{before} per day: {passed} bytes within {at} ms");
            assert!(at <= passed.saturating_sub(1000) + 2000, "{before} per day: {passed} bytes at {at} ms");
        }
        assert_eq!(passed, 4000);
    }
}

#[tokio::test(start_paused = true)]
async fn who_stops_reading_gives_its_place_back() {
    let limits = Limits::new(&[bandwidth(json!({}))]);
    let mut left = limits.send(get("/100000"), body).await.into_body();
    // The first frame contains the bytes of the burst. The next frame waits for its turn.
    assert!(left.frame().await.is_some());
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(Pin::new(&mut left).poll_frame(&mut context).is_pending());
    let rules = limits.rules.load();
    let limiter = rules.policies()[0].rules[0].rates().expect("limits").pod_limiter();
    let owed = || {
        let refused = limiter.peek(limits.clock.now(), &[], 1).expect_err("overdrawn");
        refused.retry_after().expect("some time")
    };
    let before = owed();
    drop(left);
    assert!(owed() < before && owed() <= Duration::from_millis(1), "{:?} before, {:?} after", before, owed());
}

#[tokio::test(start_paused = true)]
async fn a_shadow_counts_bytes_and_holds_nothing_up() {
    let limits = Limits::new(&[with(bandwidth(json!({})), json!({"mode": "Shadow"}))]);
    let response = limits.send(get("/12500"), body).await;
    assert_eq!(read(&limits, response.into_body()).await, [(0, 12_500)]);
    assert_eq!(limits.send(get("/1"), body).await.status(), 200);
    assert_eq!(limits.counts(0, 0), [1, 0, 1, 0]);
    // The response used 10,000 bytes beyond the burst. This debt is repaid at the usual rate.
    tokio::time::sleep(Duration::from_millis(10_001)).await;
    assert_eq!(limits.send(get("/1"), body).await.status(), 200);
    assert_eq!(limits.counts(0, 0), [2, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_cost_told_by_the_app_is_owed() {
    let limit = limit("TokenBucketWithDebt", 10, 1000, json!({"burst": 20, "debt": 5}));
    let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": 100}}});
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit], cost)])]);
    let units = |units: &'static str| {
        move |_| async move {
            let mut response = Response::new(AppBody::from("ok"));
            response.headers_mut().insert("x-units", http::HeaderValue::from_static(units));
            response
        }
    };
    let response = limits.send(get("/"), units("15")).await;
    assert!(!response.headers().contains_key("x-units"), "clients must not see the header");
    // Of 25 units, 10 remain. This response costs 60, which is 50 more than remain.
    assert_eq!(limits.send(get("/"), units("60")).await.status(), 200);
    let refused = limits.send(get("/"), ok).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &http::HeaderValue::from(6)));
    tokio::time::sleep(Duration::from_millis(5_099)).await;
    assert_eq!(limits.status("/").await, 429);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(limits.status("/").await, 200, "a response without the header costs 1");
}

/// If several rules read the same header, each of them is charged its value.
#[tokio::test(start_paused = true)]
async fn several_rules_read_the_same_cost() {
    let costing = |limit: Value| {
        let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": 100}}});
        rule(limit["name"].as_str().expect("a name"), std::slice::from_ref(&limit), cost)
    };
    let of = |name: &str| limit("TokenBucketWithDebt", 100, 86_400_000, json!({"name": name}));
    let limits = Limits::new(&[policy("p", &[costing(of("one")), costing(of("two")), costing(of("three"))])]);
    let answer =
        |_| async { Response::builder().header("x-units", "40").body(AppBody::from("ok")).expect("a response") };
    let response = limits.send(get("/"), answer).await;
    assert!(!response.headers().contains_key("x-units"), "clients must not see the header");
    let request = serde_json::from_value(json!({"target": "/"})).expect("a request");
    let explained = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Refuse).expect("valid");
    let left: Vec<_> = explained.rules.iter().map(|rule| rule.limit.as_ref().expect("a limit").remaining).collect();
    assert_eq!(left, [60, 60, 60]);
}

/// A small limit next to a large one does not reduce the charge of the large one.
#[tokio::test(start_paused = true)]
async fn each_limit_of_a_rule_is_charged_the_whole_cost() {
    let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": 1_000_000}}});
    let day = limit("TokenBucketWithDebt", 1_000_000, 86_400_000, json!({"name": "day", "debt": 1_000_000}));
    let second = limit("TokenBucketWithDebt", 10, 1000, json!({"name": "second", "debt": 10}));
    let rules = |limits: &[Value]| [policy("p", &[rule("r", limits, cost.clone())])];
    let limits = Limits::new(&rules(&[day.clone(), second]));
    let answer =
        |_| async { Response::builder().header("x-units", "500000").body(AppBody::from("ok")).expect("a response") };
    assert_eq!(limits.send(get("/"), answer).await.status(), 200);
    limits.apply(&rules(&[day]));
    let request = serde_json::from_value(json!({"target": "/"})).expect("a request");
    let explained = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Refuse).expect("valid");
    assert_eq!(explained.rules[0].limit.as_ref().expect("a limit").remaining, 1_500_000);
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_stops_reading_takes_nothing_from_those_who_read_on() {
    let limits = Limits::new(&[bandwidth(json!({}))]);
    let first = limits.send(get("/2500"), body).await;
    assert_eq!(read(&limits, first.into_body()).await, [(0, 2500)], "the burst and the debt are used up");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let stays = limits.send(get("/1000"), body).await.into_body();
    let mut crowd: Vec<_> = (0..50).map(|_| Box::pin(limits.send(get("/100000"), body))).collect();
    let mut bodies = Vec::new();
    for response in &mut crowd {
        bodies.push(response.await.into_body());
    }
    let mut context = Context::from_waker(std::task::Waker::noop());
    for body in &mut bodies {
        while Pin::new(&mut *body).poll_frame(&mut context).is_ready() {}
    }
    let mut reads = Box::pin(read(&limits, stays));
    assert!(futures::poll!(&mut reads).is_pending());
    // The bodies are dropped in the order of arrival. Each must give back its charge.
    bodies.into_iter().for_each(drop);
    let pieces = reads.await;
    let (last, _) = *pieces.last().expect("some bytes");
    assert!(last <= 1500, "{pieces:?}");
}
