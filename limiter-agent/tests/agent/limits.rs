//! Tests exactly how many requests the limits admit, in an agent process with real connections.

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::{
    bans::full_path,
    support::{Agent, Client, daily, empty, header, json_of, policy, read_head, rule, snapshot, start, with},
};

/// Sends `total` requests over 32 connections; returns how many got 200, and how many got 429.
async fn storm(agent: &Agent, path: &str, headers: &'static [(&str, &str)], total: usize) -> (usize, usize) {
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (client, url) = (Client::new(), agent.url(path));
        clients.spawn(async move {
            let mut statuses = Vec::new();
            for _ in 0..total.div_ceil(32) {
                statuses.push(client.get(&url, headers).await.status().as_u16());
            }
            statuses
        });
    }
    let statuses: Vec<u16> = clients.join_all().await.into_iter().flatten().take(total).collect();
    let count = |status| statuses.iter().filter(|one| **one == status).count();
    assert_eq!(count(200) + count(429), total, "no other status");
    (count(200), count(429))
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_at_four_times_the_limit() {
    let (app, agent) = start().await;
    for (sequence, strategy) in [(1, "TokenBucket"), (2, "FixedWindow")] {
        // The period is a thousand days, so that nothing is refilled even on a busy machine.
        let limit = with(daily("d", strategy, 2500), json!({"periodMillis": 86_400_000_000_u64}));
        // Each snapshot has a new policy, because a policy with the same name would keep its counters.
        agent.apply(&snapshot(sequence, &[policy(&strategy.to_lowercase(), &[rule("all", &[limit])])])).await;
        let before = app.requests();
        assert_eq!(storm(&agent, "/", &[], 10_016).await, (2500, 7516), "{strategy}");
        assert_eq!(app.requests() - before, 2500);
        assert_eq!(agent.counts(0, 0).await, [2500, 7516, 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_policies_are_charged_both_or_neither() {
    let (_app, agent) = start().await;
    let wide = policy("wide", &[rule("all", &[daily("d", "TokenBucket", 1000)])]);
    let narrow = policy("narrow", &[rule("all", &[daily("d", "TokenBucket", 100)])]);
    agent.apply(&snapshot(1, &[wide.clone(), narrow])).await;
    assert_eq!(storm(&agent, "/", &[], 3200).await.0, 100);
    assert_eq!((agent.counts(0, 0).await, agent.counts(1, 0).await), ([100, 0, 0], [100, 3100, 0]));
    agent.apply(&snapshot(2, &[wide])).await;
    assert_eq!(storm(&agent, "/", &[], 3200).await.0, 900);
}

#[tokio::test]
async fn a_refusal_says_when_to_come_back() {
    let (_app, agent) = start().await;
    let limits = [
        json!({"name": "burst", "strategy": "TokenBucket", "requests": 2, "periodMillis": 3_000_000}),
        daily("day", "TokenBucket", 2),
    ];
    agent.apply(&snapshot(1, &[policy("p", &[rule("all", &limits)])])).await;
    let first = agent.get("/", &[]).await;
    assert_eq!(first.status(), 200);
    assert_eq!(header(&first, "ratelimit-policy"), "\"burst\";q=2;w=3000, \"day\";q=2;w=86400");
    assert!(header(&first, "ratelimit").starts_with("\"burst\";r=1;t=1500"), "{first:?}");
    assert_eq!(agent.get("/", &[]).await.status(), 200);

    let refused = agent.get("/", &[]).await;
    assert_eq!(refused.status(), 429);
    let seconds: u64 = header(&refused, "retry-after").parse().expect("seconds");
    // The limit `burst` has a token after 1500 s, but the limit `day` only after 43200 s. If a client retried earlier,
    // it would be refused again.
    assert!((43_190..=43_200).contains(&seconds), "{seconds}");
    assert_eq!(header(&refused, "content-type"), "application/json");
    assert_eq!(header(&refused, "ratelimit"), format!("\"burst\";r=0;t={seconds}"));
    let body = json!({
        "error": "rate limited", "policy": "shop/p", "rule": "all", "limit": "burst", "retryAfterSeconds": seconds,
    });
    assert_eq!(json_of(&refused), body);
}

/// On the short path, on hyper's path and over HTTP/2. The braces of the JSON stay.
#[tokio::test]
async fn a_body_has_the_numbers_that_the_headers_have() {
    let body = r#"{"retryIn":{resetAfter},"left":{remaining},"of":{limit},"by":"{policy}/{rule}","{left}":{}}"#;
    let on_limit = json!({"status": 429, "headers": "IETF", "body": body, "contentType": "application/json"});
    for others in [vec![], vec![full_path()]] {
        let (_app, agent) = start().await;
        let own = with(rule("all", &[daily("d", "SlidingWindowLog", 2)]), json!({"onLimit": on_limit}));
        agent.apply(&snapshot(1, &[vec![policy("p", &[own])], others].concat())).await;
        assert_eq!(agent.statuses("/", &[], 2).await, [200, 200]);
        let mut http2 = agent.http2().await;
        let asked = http::Request::get("http://a/").body(empty()).expect("valid");
        let over_http2 = http2.send_request(asked).await.expect("a response");
        let (head, body) = over_http2.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        for refused in [agent.get("/", &[]).await, http::Response::from_parts(head, body)] {
            let seconds: u64 = header(&refused, "retry-after").parse().expect("seconds");
            let expected = json!({"retryIn": seconds, "left": 0, "of": 2, "by": "shop/p/all", "{left}": {}});
            assert_eq!((refused.status().as_u16(), json_of(&refused)), (429, expected));
        }
    }
}

#[tokio::test]
async fn bypasses_are_looked_at_first_and_charge_nothing() {
    let (_app, agent) = start().await;
    let limited = policy("limited", &[rule("all", &[daily("d", "TokenBucket", 1)])]);
    let probes = json!({"name": "probes", "action": "Bypass", "match": [{"paths": ["/healthz"]}]});
    agent.apply(&snapshot(1, &[limited, policy("bypass", &[probes])])).await;
    assert_eq!(agent.statuses("/healthz", &[], 5).await, [200; 5]);
    assert_eq!(agent.statuses("/", &[], 2).await, [200, 429]);
    assert_eq!(agent.statuses("/healthz", &[], 1).await, [200]);
    assert_eq!((agent.counts(0, 0).await, agent.counts(1, 0).await), ([1, 1, 0], [6, 0, 0]));
}

#[tokio::test]
async fn a_shadow_policy_counts_what_it_would_refuse() {
    let (_app, agent) = start().await;
    let shadow = json!({"mode": "Shadow"});
    let narrow = with(policy("narrow", &[rule("all", &[daily("d", "TokenBucket", 2)])]), shadow);
    let wide = policy("wide", &[rule("all", &[daily("d", "TokenBucket", 5)])]);
    agent.apply(&snapshot(1, &[narrow, wide])).await;
    assert_eq!(agent.statuses("/", &[], 7).await, [200, 200, 200, 200, 200, 429, 429]);
    // The shadow policy does not count the two requests that the other policy refused.
    assert_eq!((agent.counts(0, 0).await, agent.counts(1, 0).await), ([2, 0, 3], [5, 2, 0]));
}

#[tokio::test]
async fn clients_are_counted_by_header_and_overrides_apply() {
    let (_app, agent) = start().await;
    let keyed = json!({
        "key": [{"header": "X-Api-Key"}],
        "overrides": [{"keys": [["gold"]], "limits": [daily("d", "TokenBucket", 4)]}],
    });
    agent.apply(&snapshot(1, &[policy("p", &[with(rule("all", &[daily("d", "TokenBucket", 2)]), keyed)])])).await;
    for (headers, admitted) in
        [(&[("x-api-key", "ann")][..], 2), (&[("x-api-key", "bob")], 2), (&[("x-api-key", "gold")], 4), (&[], 2)]
    {
        let statuses = agent.statuses("/", headers, 5).await;
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), admitted, "{headers:?}");
    }
    assert_eq!(agent.statuses("/", &[("x-api-key", "")], 1).await, [200], "an empty header is not an absent one");
    let gold = agent.get("/", &[("x-api-key", "gold")]).await;
    assert_eq!(header(&gold, "ratelimit-policy"), "\"d\";q=4;w=86400");
    let status = json_of(&agent.control("GET", "/v1/status", "").await);
    // The tracked keys are Ann, Bob, no header, and an empty header. Keys with overrides always have a cell, and are
    // not counted.
    assert_eq!(status["policies"][0]["rules"][0]["keys"]["tracked"], 4);
}

#[tokio::test]
async fn rules_match_and_count_by_every_part_of_a_request() {
    let (_app, agent) = start().await;
    let matches = json!([{
        "pathRegexes": ["^/v[0-9]+/"],
        "headers": [{"name": "user-agent", "prefix": "curl/"}],
        "query": [{"name": "mode", "value": "full"}],
        "predicate": "request.headers['x-tier'] != 'gold'",
    }]);
    let key = json!([
        {"cookie": "session"}, {"query": "user"}, {"pathSegment": 2}, {"host": {}}, {"method": {}},
        {"jwtClaim": {"header": "authorization", "claim": "sub"}},
    ]);
    let keyed = json!({"match": matches, "key": key});
    agent.apply(&snapshot(1, &[policy("p", &[with(rule("all", &[daily("d", "TokenBucket", 1)]), keyed)])])).await;
    let curl = ("user-agent", "curl/8");
    let tier = ("x-tier", "free");
    let url = "/v1/orders?mode=full&user=ann";
    let bob = ("authorization", "Bearer e30.eyJzdWIiOiJib2IifQ.");
    for (path, headers, expected) in [
        (url, vec![curl, tier], 200),
        (url, vec![curl, tier], 429),
        ("/%761//orders?user=%61nn&mode=full", vec![curl, tier], 429),
        (url, vec![curl, tier, ("cookie", "a=b; session=1")], 200),
        (url, vec![curl, tier, ("cookie", "session=1")], 429),
        (url, vec![curl, tier, ("host", "Other.example.com")], 200),
        (url, vec![curl, tier, ("host", "other.example.com:80")], 429),
        (url, vec![curl, tier, bob], 200),
        (url, vec![curl, tier, bob], 429),
        ("/v1/items?mode=full&user=ann", vec![curl, tier], 200),
        ("/v1/orders?mode=full&user=eve", vec![curl, tier], 200),
        ("/x/v1/orders?mode=full&user=ann", vec![curl, tier], 200),
        ("/v1/orders?mode=fuller&user=ann", vec![curl, tier], 200),
        (url, vec![("user-agent", "wget"), tier], 200),
        (url, vec![curl, ("x-tier", "gold")], 200),
        (url, vec![curl], 200), // the predicate fails without the header, and is false
    ] {
        assert_eq!(agent.get(path, &headers).await.status(), expected, "{path} {headers:?}");
    }
    // Six keys had requests, and four of these keys exceeded the limit. Requests that did not match were not counted.
    assert_eq!(agent.counts(0, 0).await, [6, 5, 0]);
}

#[tokio::test]
async fn a_path_has_one_count_in_any_spelling() {
    let (_app, agent) = start().await;
    let keyed = json!({
        "key": [{"path": {}}],
        "overrides": [{"keys": [["/two"]], "limits": [daily("d", "TokenBucket", 2)]}],
    });
    agent.apply(&snapshot(1, &[policy("p", &[with(rule("all", &[daily("d", "TokenBucket", 1)]), keyed)])])).await;
    for (path, expected) in [
        ("/items/1", 200),
        ("/items/1", 429),
        ("/items/1/", 429),
        ("//items/%31?page=2", 429),
        ("/items/2", 200),
        ("/items", 200),
        ("/", 200),
        ("//", 429),
        ("/two", 200),
        ("/two/", 200),
        ("/two", 429),
    ] {
        assert_eq!(agent.get(path, &[]).await.status(), expected, "{path}");
    }
}

/// The target of a request overrides its `Host` field, and the app gets the host of the target. So rules that read the
/// field must read that host.
#[tokio::test]
async fn rules_read_the_host_field_that_the_app_gets() {
    let (_app, agent) = start().await;
    let deny = |name: &str, matches: Value| json!({"name": name, "action": "Deny", "match": [matches]});
    let rules = [
        deny("field", json!({"headers": [{"name": "host", "value": "admin.example.com"}]})),
        deny("predicate", json!({"predicate": "request.headers['host'] == 'b.example.com'"})),
        deny("own", json!({"hosts": ["127.0.0.1"], "paths": ["/own"]})),
    ];
    agent.apply(&snapshot(1, &[policy("p", &rules)])).await;
    for (head, expected) in [
        ("GET http://admin.example.com/ HTTP/1.1\r\nhost: a", "403"),
        ("GET http://b.example.com/ HTTP/1.1\r\nhost: a", "403"),
        ("GET http://a/ HTTP/1.1\r\nhost: admin.example.com", "200"),
        ("GET / HTTP/1.1\r\nhost: admin.example.com", "403"),
        ("GET / HTTP/1.0", "200"),
        ("GET /own HTTP/1.0", "403"),
    ] {
        let mut stream = agent.connect().await;
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await.expect("open");
        let answer = read_head(&mut stream).await.expect("a response");
        assert_eq!(answer.split(' ').nth(1), Some(expected), "{head}: {answer}");
    }
    for (host, expected) in [("admin.example.com", 403), ("b.example.com", 403), ("a", 200)] {
        let request = http::Request::get(format!("http://{host}/")).body(empty()).expect("valid");
        let answer = agent.http2().await.send_request(request).await.expect("a response");
        assert_eq!(answer.status(), expected, "{host}");
    }
}

/// Some apps execute `delete` as DELETE, so a rule for DELETE matches it, too.
#[tokio::test]
async fn the_case_of_a_method_slips_past_no_rule() {
    let (_app, agent) = start().await;
    let limit = with(rule("all", &[daily("d", "TokenBucket", 2)]), json!({"key": [{"method": {}}]}));
    let deny = json!({"name": "deny", "action": "Deny", "match": [{"methods": ["DELETE"]}]});
    agent.apply(&snapshot(1, &[policy("p", &[deny, limit])])).await;
    let mut statuses = Vec::new();
    for method in ["DELETE", "delete", "GET", "gEt", "get", "POST"] {
        let request = http::Request::builder().method(method).uri(agent.url("/")).body(Default::default());
        statuses.push(agent.client.send(request.expect("valid")).await.status().as_u16());
    }
    assert_eq!(statuses, [403, 403, 200, 200, 429, 200]);
}

/// A large query neither bypasses a limit nor matches a Bypass rule, and delays no other client.
#[tokio::test]
async fn a_predicate_over_its_budget_limits_and_does_not_bypass() {
    let (_app, agent) = start().await;
    let about = |predicate: &str| json!({"match": [{"predicate": predicate}]});
    let loops = "request.query.exists(k, k == 'x' && 'y' in request.headers)";
    let bypass = with(json!({"name": "bypass", "action": "Bypass"}), about(loops));
    let limit = with(rule("limit", &[daily("d", "FixedWindow", 1)]), about(&format!("!{loops}")));
    agent.apply(&snapshot(1, &[policy("p", &[bypass, limit])])).await;
    let query: String = (0..3_000).map(|number| format!("{number:x}&")).collect();
    assert_eq!(agent.statuses(&format!("/?{query}"), &[], 3).await, [200, 429, 429]);
    assert_eq!(agent.metric("weir_predicates_over_budget_total").await, Some(6.0));
    assert_eq!(agent.statuses("/?x", &[("y", "1")], 2).await, [200, 200]);
    let nested = "request.query.exists(a, request.query.exists(b, a == b))";
    let refused =
        agent.put(&snapshot(2, &[policy("p", &[with(rule("r", &[daily("d", "GCRA", 1)]), about(nested))])])).await;
    assert_eq!(refused.status(), 422);
    let fault = &json_of(&refused)["faults"][0];
    assert_eq!(fault["path"], "policies[0].rules[0].match[0].predicate");
    assert!(fault["message"].as_str().expect("text").contains("a quantifier"), "{fault}");
}
