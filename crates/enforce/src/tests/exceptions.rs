//! Rules that deny, rules that bypass, and rules whose mode differs from their policy's.

use std::collections::HashSet;

use http_body_util::BodyExt;
use proptest::prelude::*;
use weir_wire::Decision;

use super::*;

fn per_day(requests: u64) -> Value {
    limit("FixedWindow", requests, 86_400_000, json!({}))
}

fn from(address: &str, forwarded: &str, target: &str) -> (ConnectionPeer, Request<()>) {
    let builder = Request::builder().uri(target);
    let builder = if forwarded.is_empty() { builder } else { builder.header("x-forwarded-for", forwarded) };
    (ConnectionPeer(address.parse().expect("an address")), builder.body(()).expect("a request"))
}

struct ConnectionPeer(IpAddr);

impl Limits {
    /// Returns the status of a request over a connection from this peer.
    async fn status_from(&self, (peer, request): (ConnectionPeer, Request<()>)) -> u16 {
        let gate = self.rules.gates().of(peer.0);
        let app = tower::service_fn(async |request| Ok::<_, Infallible>(ok(request).await));
        let mut service = LimitLayer::new(gate, "weir-agent").layer(app);
        let answer = tower::Service::call(&mut service, request).await;
        answer.unwrap_or_else(|never| match never {}).status().as_u16()
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_is_refused_before_any_bypass_and_charges_nothing() {
    let limits = Limits::new(&[policy(
        "p",
        &[
            json!({"name": "probes", "action": "Bypass", "match": [{"paths": ["/healthz", "/both"]}]}),
            rule("all", &[per_day(2)], json!({})),
            json!({"name": "blocked", "action": "Deny", "match": [{"paths": ["/wp-admin/**", "/both"]}]}),
        ],
    )]);
    for _ in 0..3 {
        let refused = limits.get("/wp-admin/x").await;
        assert_eq!(refused.status(), 403);
        for absent in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert!(!refused.headers().contains_key(absent), "{absent}");
        }
        let body = refused.into_body().collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body, json!({"error": "denied", "policy": "shop/p", "rule": "blocked"}));
        assert_eq!(limits.status("/both").await, 403);
        assert_eq!(limits.status("/healthz").await, 200);
    }
    assert_eq!([limits.status("/").await, limits.status("/").await, limits.status("/").await], [200, 200, 429]);
    assert_eq!(limits.counts(0, 2), [0, 6, 0, 0]);
    let explain = |target| {
        let request = serde_json::from_value(json!({"target": target})).expect("a request");
        let reply = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Refuse);
        reply.expect("a valid request").decision
    };
    assert_eq!(explain("/both"), Decision::Deny);
    assert_eq!(explain("/healthz"), Decision::Bypass);

    let grpc = Request::builder().uri("/wp-admin/x").header("content-type", "application/grpc").body(());
    let refused = limits.send(grpc.expect("a request"), ok).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["grpc-status"]), (200, &"7".parse().expect("a value")));
}

#[tokio::test(start_paused = true)]
async fn a_denial_on_the_short_path_needs_no_second_decision() {
    let limits = Limits::new(&[policy("p", &[json!({"name": "blocked", "action": "Deny"})])]);
    let decided = limits.gate().decide_at_once("GET", ("/", None), Headers::Lines(&[]), 0, |decided| {
        decided.map_err(|refusal| (refusal.status().as_u16(), refusal.is_denied(), refusal.seconds())).map(drop)
    });
    assert_eq!(decided, Some(Err((403, true, None))));
}

#[tokio::test(start_paused = true)]
async fn a_rule_has_the_weaker_mode_of_its_policy_and_itself() {
    let off = |mode: &str| json!({"mode": mode});
    for (of_policy, of_rule, refused, counted) in [
        ("Enforce", json!({}), true, [1, 1, 0, 0]),
        ("Enforce", off("Enforce"), true, [1, 1, 0, 0]),
        ("Enforce", off("Shadow"), false, [1, 0, 1, 0]),
        ("Enforce", off("Disabled"), false, [0, 0, 0, 0]),
        ("Shadow", off("Enforce"), false, [1, 0, 1, 0]),
        ("Shadow", off("Disabled"), false, [0, 0, 0, 0]),
        ("Disabled", off("Enforce"), false, [0, 0, 0, 0]),
    ] {
        let limits = Limits::new(&[with(policy("p", &[rule("r", &[per_day(1)], of_rule.clone())]), off(of_policy))]);
        let statuses = [limits.status("/").await, limits.status("/").await];
        assert_eq!(statuses, [200, if refused { 429 } else { 200 }], "{of_policy} {of_rule}");
        assert_eq!(limits.counts(0, 0), counted, "{of_policy} {of_rule}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_rule_is_tried_while_another_of_its_policy_enforces() {
    let trial = |mode: &str| {
        let strict = rule("strict", &[per_day(2)], json!({"mode": mode}));
        let deny = json!({"name": "deny", "action": "Deny", "mode": mode, "match": [{"paths": ["/old"]}]});
        [policy("p", &[rule("loose", &[per_day(10)], json!({})), strict, deny])]
    };
    let limits = Limits::new(&trial("Shadow"));
    assert_eq!(limits.status("/old").await, 200);
    assert_eq!((limits.counts(0, 1), limits.counts(0, 2)), ([0, 0, 0, 0], [0, 0, 1, 0]));
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(limits.status("/").await);
    }
    assert_eq!(statuses, [200; 4]);
    assert_eq!((limits.counts(0, 0), limits.counts(0, 1)), ([5, 0, 0, 0], [2, 0, 2, 0]));

    // The rule keeps its statistics and its limiter when its mode changes to Enforce.
    limits.apply(&trial("Enforce"));
    assert_eq!([limits.status("/").await, limits.status("/old").await], [429, 403]);
    assert_eq!((limits.counts(0, 1), limits.counts(0, 2)), ([2, 1, 2, 0], [0, 1, 1, 0]));
}

#[tokio::test(start_paused = true)]
async fn networks_match_the_address_that_trusted_proxies_give() {
    let entry = |hops: u8| json!({"clientCIDRs": ["203.0.113.0/24", "2001:db8::/32"], "trustedHops": hops});
    let predicate =
        |hops: u8| json!({"predicate": "inIpRange(request.clientIP, '203.0.113.0/24')", "trustedHops": hops});
    for (entry, is_predicate) in [(entry as fn(u8) -> Value, false), (predicate, true)] {
        for (hops, peer, forwarded, expected) in [
            (0, "203.0.113.9", "", 403),
            (0, "::ffff:203.0.113.9", "", 403),
            (0, "203.0.114.9", "203.0.113.9", 200),
            (1, "10.0.0.1", "203.0.113.9", 403),
            (1, "10.0.0.1", "203.0.113.9, 198.51.100.1", 200),
            (2, "10.0.0.1", "203.0.113.9, 198.51.100.1", 403),
            (2, "203.0.113.1", "192.0.2.1, 198.51.100.1", 200),
            (1, "203.0.113.9", "", 403),
            (0, "2001:db8:1::9", "", if is_predicate { 200 } else { 403 }),
        ] {
            let deny = json!({"name": "blocked", "action": "Deny", "match": [entry(hops)]});
            let limits = Limits::new(&[policy("p", &[deny])]);
            let status = limits.status_from(from(peer, forwarded, "/")).await;
            assert_eq!(status, expected, "{hops} hops, {peer}, {forwarded:?}, predicate: {is_predicate}");
        }
    }
}

/// Predicates can trust different numbers of proxies for the same request.
#[tokio::test(start_paused = true)]
async fn each_predicate_trusts_its_own_proxies() {
    let rule = |name: &str, hops: u8| {
        let is = "request.clientIP == '203.0.113.9'";
        rule(name, &[per_day(9)], json!({"match": [{"predicate": is, "trustedHops": hops}]}))
    };
    let limits = Limits::new(&[policy("p", &[rule("none", 0), rule("one", 1), rule("two", 2), rule("again", 1)])]);
    limits.status_from(from("10.0.0.1", "198.51.100.1, 203.0.113.9", "/")).await;
    let counted: Vec<u64> = (0..4).map(|rule| limits.counts(0, rule)[0]).collect();
    assert_eq!(counted, [0, 1, 0, 1]);
}

#[derive(Clone, Debug)]
struct Model {
    action: &'static str,
    mode: &'static str,
    of_policy: &'static str,
    paths: HashSet<u8>,
}

fn model() -> impl Strategy<Value = Model> {
    let modes = || prop::sample::select(vec!["Enforce", "Shadow", "Disabled"]);
    let action = prop::sample::select(vec!["Limit", "Bypass", "Deny"]);
    (action, modes(), modes(), prop::collection::hash_set(0..4_u8, 1..4))
        .prop_map(|(action, mode, of_policy, paths)| Model { action, mode, of_policy, paths })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Denials precede bypasses, and bypasses precede limits. A rule acts only if both the rule and its policy enforce.
    #[test]
    fn any_rules_decide_by_the_definition(models in prop::collection::vec(model(), 1..12), path in 0..4_u8) {
        let acts = |action: &str| {
            models.iter().any(|rule| {
                rule.action == action && rule.mode == "Enforce" && rule.of_policy == "Enforce" && rule.paths.contains(&path)
            })
        };
        // Each limit admits one request per day, which is already used.
        let expected = if acts("Deny") {
            403
        } else if acts("Bypass") || !acts("Limit") {
            200
        } else {
            429
        };
        let policies: Vec<Value> = models
            .iter()
            .enumerate()
            .map(|(index, model)| {
                let paths: Vec<String> = model.paths.iter().map(|path| format!("/{path}")).collect();
                let mut rule = json!({"name": "r", "action": model.action, "mode": model.mode, "match": [{"paths": paths}]});
                if model.action == "Limit" {
                    rule["limits"] = json!([per_day(1)]);
                }
                with(policy(&format!("p{index}"), &[rule]), json!({"mode": model.of_policy}))
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let status = runtime.expect("a runtime").block_on(async {
            let limits = Limits::new(&policies);
            for path in 0..4 {
                limits.status(&format!("/{path}")).await;
            }
            // The requests above have used up each limit that acts.
            limits.status(&format!("/{path}")).await
        });
        prop_assert_eq!(status, expected);
    }
}

/// The rules of docs/guides/deny.md against clients that evade other rules.
#[tokio::test(start_paused = true)]
async fn the_rules_of_the_guide_deny_evasions() {
    let repeated = json!([
        {"predicate": "'cookie' in request.headers && request.headers['cookie'].matches('(^|[;,])[;,\\t ]*session[\\t ]*=.*[;,][;,\\t ]*session[\\t ]*=')"},
        {"predicate": r"'cookie' in request.headers && request.headers['cookie'].matches(r'(^|[;,])[;,\t ]*session[\t ]*=[^;,]*[%\\]')"},
        {"predicate": "'x-api-key' in request.headers && request.headers['x-api-key'].contains(',')"},
    ]);
    let admin = json!([{"pathRegexes": ["(?i)^/admin(;[^/]*)?(/|$)"]}]);
    let deny = |name: &str, matches: &Value| json!({"name": name, "action": "Deny", "match": matches});
    let limits = Limits::new(&[policy("p", &[deny("repeated", &repeated), deny("admin", &admin)])]);
    for (path, headers, expected) in [
        ("/", &[("cookie", "session=a; other=b")][..], 200),
        ("/", &[("cookie", "session=x; session=a")], 403),
        ("/", &[("cookie", "session=x;other=1;session=a")], 403),
        ("/", &[("cookie", "session=x"), ("cookie", "session=a")], 403),
        ("/", &[("cookie", "session=x; session =a")], 403),
        ("/", &[("cookie", "session\t=x;session=a")], 403),
        ("/", &[("cookie", "session=a; my-session=b; other=%61")], 200),
        ("/", &[("cookie", "other=b; session=\"\\162eal\"")], 403),
        ("/", &[("cookie", "session = %72eal")], 403),
        ("/", &[("x-api-key", "a")], 200),
        ("/", &[("x-api-key", "x"), ("x-api-key", "a")], 403),
        ("/admin", &[], 403),
        ("/ADMIN/users", &[], 403),
        ("/admin;x/users", &[], 403),
        ("/administrators", &[], 200),
    ] {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let status = limits.send(request.body(()).expect("a request"), ok).await.status().as_u16();
        assert_eq!(status, expected, "{path} {headers:?}");
    }
}
