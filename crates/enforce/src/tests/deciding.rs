//! Strategies, costs, refusals, messages and explanations.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderValue;
use http_body_util::BodyExt;
use jsonwebtoken::{EncodingKey, Header, encode};

use super::*;
use crate::matching::Headers;

#[tokio::test(start_paused = true)]
async fn every_strategy_is_enforced() {
    for (strategy, more, admitted) in [
        ("FixedWindow", json!({}), 4),
        ("SlidingWindowCounter", json!({}), 4),
        ("SlidingWindowLog", json!({}), 4),
        ("TokenBucket", json!({}), 4),
        ("TokenBucketWithDebt", json!({"debt": 2}), 6),
        ("LeakyBucket", json!({}), 1),
        ("GCRA", json!({"burst": 2}), 2),
    ] {
        let limits = Limits::new(&[policy("p", &[rule("r", &[limit(strategy, 4, 86_400_000, more)], json!({}))])]);
        let mut statuses = Vec::new();
        for _ in 0..8 {
            statuses.push(limits.status("/").await);
        }
        assert_eq!(statuses, [vec![200; admitted], vec![429; 8 - admitted]].concat(), "{strategy}");
    }
}

#[tokio::test(start_paused = true)]
async fn costs_are_fixed_or_told() {
    let bucket = || limit("TokenBucket", 100, 86_400_000, json!({}));
    let from_header = json!({"cost": {"requestHeader": {"name": "x-cost", "most": 50}}});
    let limits = Limits::new(&[policy(
        "p",
        &[
            rule("fixed", &[bucket()], with(json!({"match": [{"paths": ["/fixed"]}]}), json!({"cost": {"fixed": 30}}))),
            rule("told", &[bucket()], with(json!({"match": [{"paths": ["/told"]}]}), from_header)),
        ],
    )]);
    for expected in [200, 200, 200, 429] {
        assert_eq!(limits.status("/fixed").await, expected);
    }
    for (cost, expected, left) in [("40", 200, "60"), ("999", 200, "10"), ("11", 429, "10"), ("x", 200, "9")] {
        let request = Request::builder().uri("/told").header("x-cost", cost).body(()).expect("a request");
        let response = limits.send(request, ok).await;
        assert_eq!(response.status(), expected, "{cost}");
        let field = response.headers()["ratelimit"].to_str().expect("text");
        assert!(field.starts_with(&format!("\"l\";r={left};")), "{cost}: {field}");
    }
}

#[tokio::test(start_paused = true)]
async fn rules_of_different_costs_are_charged_together_or_not_at_all() {
    let bucket = |requests| limit("TokenBucket", requests, 86_400_000, json!({}));
    let limits = Limits::new(&[
        policy("dear", &[rule("r", &[bucket(100)], json!({"cost": {"fixed": 10}}))]),
        policy("cheap", &[rule("r", &[bucket(5)], json!({}))]),
    ]);
    for expected in [200, 200, 200, 200, 200, 429, 429] {
        assert_eq!(limits.status("/").await, expected);
    }
    let rules = limits.rules.load();
    let dear = rules.policies()[0].rules[0].rates().expect("limits");
    assert_eq!(dear.pod_limiter().peek(limits.clock.now(), &[], 1).expect("some left").standing.remaining(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_looks_as_its_rule_says() {
    let form = json!({"onLimit": {
        "status": 503, "headers": "None", "body": "<p>slow down</p>", "contentType": "text/html",
    }});
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit("GCRA", 1, 10_000, json!({}))], form)])]);
    assert_eq!(limits.status("/").await, 200);
    let refused = limits.get("/").await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["content-type"]), (503, &"text/html".parse().unwrap()));
    assert_eq!(refused.headers()["retry-after"], "10");
    assert!(!refused.headers().contains_key("ratelimit"));
    assert_eq!(refused.into_body().collect().await.expect("a body").to_bytes(), "<p>slow down</p>");
}

#[tokio::test(start_paused = true)]
async fn a_grpc_client_is_told_in_its_own_way() {
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit("GCRA", 2, 3000, json!({}))], json!({}))])]);
    assert_eq!(limits.status("/").await, 200);
    for content_type in ["application/grpc", "application/grpc+proto"] {
        let request = Request::builder().header("content-type", content_type).body(()).expect("a request");
        let refused = limits.send(request, ok).await;
        assert_eq!(refused.status(), 200, "{content_type}");
        let value = |name: &str| refused.headers().get(name).map_or("", |value| value.to_str().expect("text"));
        assert_eq!((value("grpc-status"), value("grpc-message")), ("8", "over the rate limit"));
        assert_eq!((value("retry-after"), value("grpc-retry-pushback-ms")), ("2", "1500"));
        assert_eq!(value("content-type"), "application/grpc");
        assert!(http_body::Body::is_end_stream(refused.body()), "headers only");
    }
}

/// `decide_at_once` returns `None`, and charges nothing, if `decide` must be called.
#[tokio::test(start_paused = true)]
async fn what_goes_or_is_refused_now_is_decided_at_once() {
    let decide = |limits: &Limits| {
        limits.gate().decide_at_once("GET", ("/", None), Headers::Lines(&[]), 0, |decided| {
            let follow_up = decided.map_err(drop)?.follow_up;
            Ok::<_, ()>(follow_up.map(|follow_up| (follow_up.deadline.is_some(), follow_up.costs.len())))
        })
    };

    // The turn of the second request comes in a second. While it waits, the turn of a third request would come in two
    // seconds, which is too late.
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit("GCRA", 1, 1000, json!({}))], wait(1500))])]);
    assert_eq!(decide(&limits), Some(Ok(None)));
    assert_eq!((decide(&limits), limits.counts(0, 0)), (None, [1, 0, 0, 0]));
    let mut waits = Box::pin(limits.status("/"));
    assert!(futures::poll!(&mut waits).is_pending());
    assert_eq!((decide(&limits), limits.counts(0, 0)), (Some(Err(())), [1, 1, 0, 0]));
    drop(waits);
    assert_eq!((decide(&limits), limits.counts(0, 0)), (None, [1, 1, 0, 0]));

    let (none, answered) = (json!({}), json!({"cost": {"responseHeader": {"name": "x", "most": 9}}}));
    let (hurried, bytes) = (json!({"deadlineMillis": 5000}), json!({"cost": "responseBytes"}));
    for (more, mode, policy_more, expected) in [
        (&none, "Enforce", &none, Some(Ok(None))),
        (&none, "Enforce", &hurried, Some(Ok(Some((true, 0))))),
        (&answered, "Enforce", &none, Some(Ok(Some((false, 1))))),
        (&answered, "Shadow", &none, Some(Ok(Some((false, 1))))),
        (&bytes, "Enforce", &none, None),
        (&bytes, "Shadow", &none, None),
    ] {
        let units = limit("TokenBucketWithDebt", 9, 1000, json!({"burst": 9, "debt": 9}));
        let policy = policy("p", &[rule("r", &[units], more.clone())]);
        let limits = Limits::new(&[with(with(policy, json!({"mode": mode})), policy_more.clone())]);
        assert_eq!(decide(&limits), expected, "{mode} {more}");
        assert_eq!(limits.counts(0, 0), [u64::from(expected.is_some()), 0, 0, 0], "{mode} {more}");
    }
}

#[tokio::test(start_paused = true)]
async fn messages_are_counted_by_the_rules_in_force() {
    let chat = |requests, more: Value| {
        let more = with(json!({"per": "Message", "match": [{"paths": ["/ws"]}], "key": [{"query": "room"}]}), more);
        policy("p", &[rule("chat", &[limit("TokenBucket", requests, 86_400_000, json!({}))], more)])
    };
    let limits = Limits::new(&[chat(4, json!({"cost": {"fixed": 2}}))]);
    assert!(limits.rules.messages(PEER, &get("/other")).is_none());
    for _ in 0..5 {
        assert_eq!(limits.status("/ws?room=a").await, 200, "the opening request charges nothing");
    }
    let [a, b] = ["/ws?room=a", "/ws?room=b"].map(|room| limits.rules.messages(PEER, &get(room)).expect("counted"));
    assert_eq!([a.decide(), a.decide()], [Ok(()), Ok(())]);
    let refused = a.decide().expect_err("used up");
    assert!(!refused.close);
    let notice: Value = serde_json::from_str(&refused.notice).expect("JSON");
    assert_eq!((&notice["error"], &notice["limit"]), (&json!("rate limited"), &json!("l")));
    assert_eq!(b.decide(), Ok(()), "another room");
    assert_eq!(limits.counts(0, 0), [3, 1, 0, 0]);

    // A change applies to open connections, too.
    limits.apply(&[chat(4, json!({"onLimit": {"status": 429, "headers": "None", "onMessage": "Close"}}))]);
    assert!(a.decide().expect_err("still used up").close);
    limits.apply(&[with(chat(4, json!({})), json!({"mode": "Shadow"}))]);
    assert_eq!(a.decide(), Ok(()));
    assert_eq!(limits.counts(0, 0), [3, 2, 1, 0]);
    let bypass = json!({"name": "all", "action": "Bypass"});
    limits.apply(&[chat(4, json!({})), policy("open", &[bypass])]);
    assert_eq!(a.decide(), Ok(()));
    limits.apply(&[]);
    assert_eq!(a.decide(), Ok(()));
}

/// The token expires, its key leaves the set, and the rule reads another of its claims.
#[tokio::test(start_paused = true)]
async fn a_connection_keeps_the_claims_of_its_opening_request() {
    let policy = |claim: &str| {
        let more = json!({"per": "Message", "key": [{"jwtClaim": {"header": "authorization", "claim": claim}}]});
        policy("p", &[rule("r", &[limit("TokenBucket", 1, 86_400_000, json!({}))], more)])
    };
    let keys = |secret: &[u8]| {
        let key = json!({"kty": "oct", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)});
        Jwks::parse(&json!({"keys": [key]}).to_string()).expect("keys")
    };
    let limits = Limits::new(&[policy("sub")]);
    let expires = Duration::from_nanos(limits.clock.now().as_nanos()).as_secs() + 10;
    let open = |client: &str| {
        let claims = json!({"sub": client, "org": format!("{client}'s"), "exp": expires});
        let token = encode(&Header::default(), &claims, &EncodingKey::from_secret(b"secret")).expect("signed");
        let request = Request::builder().header("authorization", format!("Bearer {token}")).body(());
        limits.rules.messages(PEER, &request.expect("a request")).expect("counted")
    };

    // No key set was loaded yet, so no token had claims. The first keys verify these connections.
    limits.rules.verify_with(Jwks::default());
    let early = open("eve");
    limits.rules.verify_with(keys(b"secret"));
    let (ann, bob) = (open("ann"), open("bob"));
    assert!(ann.decide().is_ok() && ann.decide().is_err());

    tokio::time::advance(Duration::from_secs(1_000)).await;
    limits.apply(&[policy("sub"), with(policy("sub"), json!({"uid": "q", "name": "q"}))]);
    limits.apply(&[policy("sub")]);
    limits.rules.verify_with(keys(b"another"));
    assert!(ann.decide().is_err(), "used up");
    assert!([&bob, &early].iter().all(|client| client.decide().is_ok()), "each has its own count");
    assert!([&bob, &early].iter().all(|client| client.decide().is_err()), "used up");

    limits.apply(&[policy("org")]);
    assert!([&ann, &bob].iter().all(|client| client.decide().is_ok()), "each has its own count");
    assert!([&ann, &bob].iter().all(|client| client.decide().is_err()), "used up");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_believed_until_there_are_keys() {
    let keyed = json!({"key": [{"jwtClaim": {"header": "authorization", "claim": "sub"}}]});
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit("TokenBucket", 1, 86_400_000, json!({}))], keyed)])]);
    let send = || {
        let token = HeaderValue::from_static("Bearer e30.eyJzdWIiOiJhbm4ifQ.");
        let request = Request::builder().header("authorization", token).body(()).expect("a request");
        limits.send(request, ok)
    };
    assert_eq!([send().await.status().as_u16(), send().await.status().as_u16()], [200, 429]);
    assert_eq!(limits.status("/").await, 200, "requests without a token share one counter");
    let jwks = Jwks::parse(r#"{"keys": [{"kty": "oct", "alg": "HS256", "k": "AAAA"}]}"#).expect("keys");
    limits.rules.verify_with(jwks);
    assert_eq!(send().await.status(), 429, "an unsigned token counts as no token");
}

#[tokio::test(start_paused = true)]
async fn both_entries_refuse_alike() {
    let burst = || limit("TokenBucket", 1, 86_400_000, json!({}));
    let hourly = || with(limit("FixedWindow", 9, 3_600_000, json!({})), json!({"name": "hourly"}));
    let overrides = json!({
        "key": [{"header": "x-key"}],
        "overrides": [{"keys": [["gold"]], "limits": [with(burst(), json!({"periodMillis": 500}))]}],
    });
    for (limits, on_limit) in [
        (vec![burst()], json!({"status": 429, "headers": "IETF"})),
        (vec![burst(), hourly()], json!({"status": 503, "headers": "Both", "body": "slow down"})),
        (vec![hourly(), burst()], json!({"status": 499, "headers": "Legacy", "body": "", "contentType": "text/x"})),
        (vec![burst()], json!({"status": 429, "headers": "None", "body": "{}", "contentType": "application/json"})),
    ] {
        let more = with(overrides.clone(), json!({"onLimit": on_limit}));
        let limits = Limits::new(&[policy("p", &[rule("r", &limits, more)])]);
        for key in ["basic", "gold"] {
            let request = || Request::builder().uri("/a?b").header("x-key", key).body(()).expect("a request");
            assert_eq!(limits.send(request(), ok).await.status(), 200);
            let (head, body) = limits.send(request(), ok).await.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();

            let request = request();
            let headers = Headers::Map(request.headers());
            let rendered = limits.gate().decide_at_once("GET", ("/a", Some("b")), headers, 0, |decided| {
                refused(decided.expect_err("a refusal"), Format::Http)
            });
            let (parts, text) = rendered.expect("a decision without a wait").into_parts();
            assert_eq!((parts.status, parts.headers, text), (head.status, head.headers, body));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_has_the_status_of_its_rule_and_one_time_in_all_fields() {
    let form = json!({"onLimit": {"status": 503, "headers": "Both"}});
    let limits = Limits::new(&[policy("p", &[rule("r", &[limit("TokenBucket", 1, 10_000, json!({}))], form)])]);
    assert_eq!(limits.status("/").await, 200);
    let refusal = limits.get("/").await;
    assert_eq!(refusal.status(), 503);
    let field = |name: &str| refusal.headers()[name].to_str().expect("text").to_owned();
    assert_eq!(
        [field("x-ratelimit-limit"), field("x-ratelimit-remaining"), field("x-ratelimit-reset")],
        ["1", "0", "10"]
    );
    assert_eq!(field("retry-after"), "10");
    assert!(field("ratelimit").contains("r=0") && field("ratelimit").contains("t=10"), "{}", field("ratelimit"));
}
