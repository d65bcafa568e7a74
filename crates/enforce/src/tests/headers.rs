//! Response headers that rules set, and the responses that contain the headers of quotas.

use std::{future::pending, time::Duration};

use http_body_util::BodyExt as _;

use super::*;

fn per_day(requests: u64) -> Value {
    limit("FixedWindow", requests, 86_400_000, json!({}))
}

fn own(rule: &str, left: &str) -> Value {
    json!({"responseHeaders": [{"name": left, "value": "{remaining} of {limit} for {policy}/{rule}"}, {"name": "x-app", "value": rule}]})
}

/// An app that sets a header that rules also set.
async fn app(_: Request<()>) -> Response<AppBody> {
    let response = Response::builder().header("x-app", "from the app").header("x-other", "stays");
    response.body("ok".into()).expect("a response")
}

/// Returns the headers of the response, which must be the same on both paths of the agent.
async fn headers(limits: &Limits) -> Vec<(String, String)> {
    let response = limits.send(get("/"), app).await;
    let headers = response.headers().iter();
    headers.map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned())).collect()
}

fn value(headers: &[(String, String)], name: &str) -> Vec<String> {
    headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn every_response_has_the_headers_of_its_rule() {
    let set = json!({"onLimit": {"status": 429, "headers": "None", "set": [{"name": "x-why", "value": "{rule}, {remaining} left, in {resetAfter}s"}]}});
    let hourly = limit("GCRA", 2, 3_600_000, json!({"burst": 2}));
    let limits = Limits::new(&[policy("p", &[rule("r", &[hourly], with(own("r", "x-left"), set))])]);
    for left in ["1", "0"] {
        let found = headers(&limits).await;
        assert_eq!(value(&found, "x-left"), [format!("{left} of 2 for shop/p/r")]);
        assert_eq!((value(&found, "x-app"), value(&found, "x-other")), (vec!["r".into()], vec!["stays".into()]));
        assert_eq!((value(&found, "x-why"), value(&found, "ratelimit")), (vec![], vec![]));
    }
    let found = headers(&limits).await;
    assert_eq!(value(&found, "x-left"), ["0 of 2 for shop/p/r"]);
    assert_eq!(value(&found, "x-why"), ["r, 0 left, in 1800s"]);
}

#[tokio::test(start_paused = true)]
async fn each_of_several_rules_sets_its_headers() {
    let quiet = |more: Value| with(more, json!({"onLimit": {"status": 429, "headers": "None"}}));
    let limits = Limits::new(&[
        policy("a", &[rule("first", &[per_day(9)], own("first", "x-a"))]),
        policy(
            "b",
            &[rule("second", &[per_day(2)], quiet(own("second", "x-b"))), rule("plain", &[per_day(9)], json!({}))],
        ),
    ]);
    let found = headers(&limits).await;
    assert_eq!(value(&found, "x-a"), ["8 of 9 for shop/a/first"]);
    assert_eq!(value(&found, "x-b"), ["1 of 2 for shop/b/second"]);
    assert_eq!(value(&found, "x-app"), ["second"]);
    assert_eq!(value(&found, "ratelimit").len(), 1);
    assert!(value(&found, "ratelimit-policy")[0].matches("q=9").count() == 2);
}

#[tokio::test(start_paused = true)]
async fn quota_fields_can_be_on_refusals_only() {
    let on = json!({"onLimit": {"status": 429, "headers": "Both", "headersOn": "Refusals"}});
    let limits = Limits::new(&[policy("p", &[rule("r", &[per_day(1)], on)])]);
    let admitted = headers(&limits).await;
    let refused = headers(&limits).await;
    for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"] {
        assert_eq!((value(&admitted, name).len(), value(&refused, name).len()), (0, 1), "{name}");
    }
}

/// The lines of the short path and the map of hyper's path contain the same headers.
#[tokio::test(start_paused = true)]
async fn lines_and_map_have_the_same_headers() {
    for several in [false, true] {
        let mut rules = vec![rule("r", &[per_day(5)], own("r", "x-left"))];
        if several {
            rules.push(rule("s", &[per_day(7)], own("s", "x-more")));
        }
        let clock = MonotonicClock::of_tokio();
        let [of_lines, of_map] = [(); 2].map(|()| Limits::with_clock(clock, &[policy("p", &rules)]));
        let mut lines = Vec::new();
        let decided = of_lines.gate().decide_at_once("GET", ("/", None), Headers::Lines(&[]), 0, |decided| {
            let fields = decided.map_err(|_| "refused").expect("it passes").fields;
            fields.append_to(&mut lines);
            ["x-left", "X-App", "ratelimit", "x-other"].map(|name| fields.replace(name))
        });
        assert_eq!(decided, Some([true, true, true, false]));
        let lines = String::from_utf8(lines).expect("text");
        let mut lines: Vec<_> = lines.lines().map(|line| line.split_once(": ").expect("a field")).collect();
        let map = headers(&of_map).await;
        let mut map: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        map.retain(|(name, _)| *name != "x-other");
        lines.sort_unstable();
        map.sort_unstable();
        assert_eq!(lines, map, "several rules: {several}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_never_admitted_gets_no_time_for_a_retry() {
    let cost = json!({"cost": {"requestHeader": {"name": "x-cost", "most": 100}}});
    let bucket = limit("TokenBucket", 5, 10_000, json!({"burst": 5}));
    let concurrent = json!({"name": "r", "action": "Limit", "concurrency": {"name": "l", "limit": 5}});
    for rules in [
        vec![rule("r", std::slice::from_ref(&bucket), cost.clone())],
        vec![rule("r", &[with(per_day(50), json!({"name": "day"})), bucket], cost.clone())],
        vec![with(concurrent, cost.clone())],
    ] {
        let limits = Limits::new(&[policy("p", &rules)]);
        let of_cost = |cost: &str| Request::builder().uri("/").header("x-cost", cost).body(()).expect("a request");
        let refused = limits.send(of_cost("6"), ok).await;
        assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (429, false));
        let body: Value =
            serde_json::from_slice(&refused.into_body().collect().await.expect("a body").to_bytes()).expect("JSON");
        assert_eq!(body["retryAfterSeconds"], Value::Null);
        let on_the_short_path = limits.gate().decide_at_once(
            "GET",
            ("/", None),
            Headers::Lines(&[FieldLine { name: b"x-cost", value: b"6" }]),
            0,
            |decided| decided.map(drop).map_err(Refusal::seconds),
        );
        assert_eq!(on_the_short_path, Some(Err(None)));
        let held = limits.send(of_cost("5"), ok).await;
        assert_eq!(held.status().as_u16(), 200);
        let later = limits.send(of_cost("2"), ok).await;
        assert_eq!((later.status().as_u16(), later.headers().contains_key("retry-after")), (429, true));
    }
}

/// A cost that one limit never admits gets no time for a retry, even while another limit refuses.
#[tokio::test(start_paused = true)]
async fn a_cost_that_another_limit_never_admits_gets_no_time_for_a_retry() {
    let (a, b) = (
        limit("TokenBucket", 10, 20_000, json!({"name": "a"})),
        limit("TokenBucket", 5, 3_600_000, json!({"name": "b"})),
    );
    let cost = json!({"cost": {"requestHeader": {"name": "x-cost", "most": 100}}});
    let one = vec![rule("r", &[a.clone(), b.clone()], cost.clone())];
    let two = vec![rule("a", &[a], cost.clone()), rule("b", &[b], cost)];
    for (rules, rule) in [(one, "r"), (two, "b")] {
        let limits = Limits::new(&[policy("p", &rules)]);
        let of_cost = |cost: &str| Request::builder().uri("/").header("x-cost", cost).body(()).expect("a request");
        assert_eq!(limits.send(of_cost("5"), ok).await.status(), 200);
        let refused = limits.send(of_cost("7"), ok).await;
        assert_eq!(refused.headers()["ratelimit"], "\"b\";r=0");
        assert_eq!((refused.status().as_u16(), refused.headers().contains_key("retry-after")), (429, false));
        let body = refused.into_body().collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!((&body["rule"], &body["limit"]), (&json!(rule), &json!("b")));
        assert_eq!(body["retryAfterSeconds"], Value::Null);
        let later = limits.send(of_cost("5"), ok).await;
        assert_eq!((later.status().as_u16(), later.headers().contains_key("retry-after")), (429, true));
    }
}

fn concurrent(name: &str, limit: u64, more: Value) -> Value {
    with(json!({"name": name, "action": "Limit", "concurrency": {"name": "l", "limit": limit}}), more)
}

/// The last rule takes precedence, whichever kinds of limits the rules have.
#[tokio::test(start_paused = true)]
async fn the_last_rule_sets_a_header_of_the_same_name() {
    let set = |name: &str| json!({"responseHeaders": [{"name": "x-q", "value": name}]});
    let rate = |name: &str, requests| rule(name, &[per_day(requests)], set(name));
    let (before, between) = (concurrent("two", 9, set("two")), || rate("one", 9));
    for (rules, last) in [
        (vec![between(), before.clone(), rate("three", 9)], "three"),
        (vec![before.clone(), between()], "one"),
        (vec![between(), before.clone()], "two"),
        (vec![rate("three", 1), before.clone(), between()], "one"),
    ] {
        let clock = MonotonicClock::of_tokio();
        let [of_lines, of_map] = [(); 2].map(|()| Limits::with_clock(clock, &[policy("p", &rules)]));
        assert_eq!(value(&headers(&of_map).await, "x-q"), [last]);
        assert_eq!(value(&headers(&of_map).await, "x-q"), [last], "also if the first rule refuses");
        let mut lines = Vec::new();
        let decided = of_lines.gate().decide_at_once("GET", ("/", None), Headers::Lines(&[]), 0, |decided| {
            decided.map_err(drop).expect("it passes").fields.append_to(&mut lines);
        });
        assert_eq!(decided, Some(()));
        let lines = String::from_utf8(lines).expect("text");
        let sent: Vec<_> = lines.lines().filter(|line| line.starts_with("x-q")).collect();
        assert_eq!(sent, [format!("x-q: {last}")]);
    }
}

/// Every rule that matches sets its headers in a refusal by another rule.
#[tokio::test(start_paused = true)]
async fn a_refusal_has_the_headers_of_all_matching_rules() {
    let quota = rule("quota", &[per_day(9)], own("quota", "x-left"));
    let none = json!({"match": [{"paths": ["/other"]}]});
    let other = rule("other", &[per_day(9)], with(own("other", "x-other-left"), none));
    let deny = json!({"name": "deny", "action": "Deny", "match": [{"paths": ["/"], "methods": ["GET"]}]});
    for (refusing, status, left, app) in [
        (rule("tight", &[per_day(1)], json!({})), 429, "8 of 9 for shop/p/quota", "quota"),
        (
            rule("tight", &[per_day(1)], json!({"responseHeaders": [{"name": "x-app", "value": "t"}]})),
            429,
            "8 of 9 for shop/p/quota",
            "t",
        ),
        (concurrent("c", 1, json!({})), 429, "8 of 9 for shop/p/quota", "quota"),
        (deny, 403, "9 of 9 for shop/p/quota", "quota"),
    ] {
        let limits = Limits::new(&[policy("p", &[quota.clone(), other.clone(), refusing])]);
        let held = limits.send(get("/"), app_that_answers).await;
        let found = headers(&limits).await;
        assert_eq!(limits.status("/").await, status);
        assert_eq!(value(&found, "x-left"), [left]);
        assert_eq!(value(&found, "x-app"), [app]);
        assert!(value(&found, "x-other-left").is_empty(), "the rule does not match");
        drop(held);
    }
}

async fn app_that_answers(_: Request<()>) -> Response<AppBody> {
    Response::new("ok".into())
}

/// A prepared refusal is used only for refusals with the same headers.
#[tokio::test(start_paused = true)]
async fn a_refusal_with_headers_of_other_rules_is_not_prepared() {
    let tight = rule("tight", &[per_day(1)], json!({}));
    let quota = rule("quota", &[per_day(9)], with(own("quota", "x-left"), json!({"match": [{"paths": ["/both"]}]})));
    let limits = Limits::new(&[policy("p", &[tight, quota])]);
    assert_eq!(limits.status("/").await, 200);
    let gate = limits.gate();
    let ask = |path: &str, of: Option<&TextKey>| {
        let decided = gate.decide_at_once("GET", (path, None), Headers::Lines(&[]), 0, |decided| {
            let refusal = decided.expect_err("refused");
            (refusal.text_key(), of.is_some_and(|key| refusal.is_for(key)))
        });
        decided.expect("immediately")
    };
    let ((plain, _), (both, _)) = (ask("/", None), ask("/both", None));
    assert_eq!([ask("/", Some(&plain)).1, ask("/both", Some(&plain)).1], [true, false]);
    assert_eq!([ask("/", Some(&both)).1, ask("/both", Some(&both)).1], [false, false]);
}

/// The response to a request that exceeds its deadline, and the refusal of one that waited, have the headers, too.
#[tokio::test(start_paused = true)]
async fn a_late_request_has_the_headers_of_its_rules() {
    let deadline = |rules: &[Value]| with(policy("p", rules), json!({"deadlineMillis": 500}));
    let rules = |paced| {
        let patient = rule("paced", &[limit("GCRA", paced, 1_000, json!({}))], wait(5_000));
        [rule("quota", &[per_day(9)], own("quota", "x-left")), patient]
    };
    for rules in [&rules(9)[..1], &rules(9)] {
        let limits = Limits::new(&[deadline(rules)]);
        let late = limits.send(get("/"), |_| pending()).await;
        assert_eq!(
            (late.status().as_u16(), late.headers()["x-left"].to_str().ok()),
            (504, Some("8 of 9 for shop/p/quota"))
        );
        assert_eq!(late.headers()["x-app"], "quota");
    }
    let limits = Limits::new(&[policy("p", &rules(10))]);
    let mut waits: Vec<_> = (0..9).map(|_| Box::pin(limits.send(get("/"), ok))).collect();
    for wait in &mut waits {
        let _ = futures::poll!(wait);
    }
    let mut slower = rules(1);
    slower[1] = with(slower[1].clone(), wait(100));
    limits.apply(&[policy("p", &slower)]);
    let refused = waits.pop().expect("a request").await;
    assert_eq!((refused.status().as_u16(), refused.headers()["x-app"].to_str().ok()), (429, Some("quota")));
    tokio::time::advance(Duration::from_secs(1)).await;
}
