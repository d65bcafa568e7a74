//! Rules that deny, rules that bypass, and rules whose mode differs from their policy's.

use http_body_util::BodyExt;
use proptest::prelude::*;
use weir_wire::Decision;

use super::*;
use crate::{
    matching::RequestView,
    rule_set::{MatchBuffers, Matching},
};

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
    /// The paths of each entry. Without entries, the rule is for all requests.
    entries: Vec<Vec<String>>,
}

impl Model {
    fn is_about(&self, path: &str) -> bool {
        self.entries.is_empty() || self.entries.iter().flatten().any(|glob| glob == "/**" || glob == path)
    }
}

fn modes() -> impl Strategy<Value = &'static str> {
    prop_oneof![3 => Just("Enforce"), 2 => Just("Shadow"), 1 => Just("Disabled")]
}

fn model() -> impl Strategy<Value = Model> {
    let entry = |globs: &[&str]| globs.iter().map(|&glob| glob.to_owned()).collect();
    let some = prop::collection::hash_set((0..4_u8).prop_map(|path| format!("/{path}")), 1..4);
    let entries = prop_oneof![
        1 => Just(vec![]),
        1 => Just(vec![entry(&["/**"])]),
        1 => Just(vec![entry(&["/0"]), entry(&["/1", "/**"])]),
        5 => some.prop_map(|paths| vec![paths.into_iter().collect()]),
    ];
    let action = prop_oneof![6 => Just("Limit"), 1 => Just("Bypass"), 1 => Just("Deny")];
    (action, modes(), entries).prop_map(|(action, mode, entries)| Model { action, mode, entries })
}

/// The error is the bypass that acts. Otherwise, the first list has the rules that enforce, and the second the rules in
/// shadow mode. A rule is a policy index and a rule name.
type Found = Result<[Vec<(usize, String)>; 2], (usize, String)>;

/// Denials precede bypasses, and bypasses precede limits. A rule acts only if both the rule and its policy enforce.
fn by_definition(policies: &[(&str, Vec<Model>)], path: &str) -> (u16, Found) {
    let matching = policies.iter().enumerate().flat_map(|(policy, (of_policy, rules))| {
        let rules = rules.iter().enumerate().filter(|(_, rule)| rule.is_about(path));
        rules.map(move |(number, rule)| (rule.action, [*of_policy, rule.mode], (policy, format!("r{number}"))))
    });
    let on = matching.filter(|(_, modes, _)| !modes.contains(&"Disabled"));
    let (acting, shadows): (Vec<_>, Vec<_>) = on.partition(|(_, modes, _)| *modes == ["Enforce"; 2]);
    let of = |action: &str| -> Vec<_> {
        acting.iter().filter(|rule| rule.0 == action).map(|(.., name)| name.clone()).collect()
    };
    let (denies, bypasses, limits) = (of("Deny"), of("Bypass"), of("Limit"));
    if let [first, ..] = &denies[..] {
        return (403, Ok([vec![first.clone()], vec![]]));
    }
    if let [first, ..] = &bypasses[..] {
        return (200, Err(first.clone()));
    }
    // Each limit admits one request per day, which is already used.
    let status = if limits.is_empty() { 200 } else { 429 };
    (status, Ok([limits, shadows.into_iter().map(|(.., name)| name).collect()]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_rules_decide_by_the_definition(
        policies in prop::collection::vec((modes(), prop::collection::vec(model(), 1..4)), 0..5),
        path in 0..4_u8,
    ) {
        let path = format!("/{path}");
        let written: Vec<Value> = policies
            .iter()
            .enumerate()
            .map(|(number, (mode, rules))| {
                let rules = rules.iter().enumerate().map(|(number, model)| {
                    let entries: Vec<_> = model.entries.iter().map(|paths| json!({"paths": paths})).collect();
                    let limits = if model.action == "Limit" { json!({"limits": [per_day(1)]}) } else { json!({}) };
                    let rule = json!({"name": format!("r{number}"), "action": model.action, "mode": model.mode});
                    with(with(rule, limits), json!({"match": entries}))
                });
                with(policy(&format!("p{number}"), &rules.collect::<Vec<_>>()), json!({"mode": mode}))
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let (status, found) = runtime.expect("a runtime").block_on(async {
            let limits = Limits::new(&written);
            for path in 0..4 {
                limits.status(&format!("/{path}")).await;
            }
            // The requests above have used up each limit that acts.
            let status = limits.status(&path).await;
            let set = &*limits.rules.load().requests;
            let name = |index: &usize| (set.get(*index).policy, set.get(*index).rule.name.clone());
            let found = match set.matching(&RequestView::new(&get(&path), PEER), &mut MatchBuffers::default()) {
                Matching::Bypass(bypass) => Err((bypass.policy, bypass.rule.name.clone())),
                Matching::Rules { enforced, shadows } => {
                    Ok([enforced, shadows].map(|some| some.iter().map(name).collect()))
                }
            };
            (status, found)
        });
        prop_assert_eq!((status, found), by_definition(&policies, &path), "{}", path);
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
