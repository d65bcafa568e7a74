//! Tests `/metrics` as a scraper reads it.

use std::collections::{BTreeSet, HashMap, HashSet};

use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::support::{Agent, App, daily, policy, redis_at, rule, snapshot, start, with};

/// Parses a scrape into the value of each series, and checks the rules of the text format.
fn parse(text: &str) -> HashMap<String, f64> {
    let (mut helped, mut kinds) = (HashSet::new(), HashMap::new());
    let mut series = HashMap::new();
    let mut family = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            assert!(helped.insert(name) && !help.is_empty(), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(helped.contains(name) && kinds.insert(name, kind).is_none(), "{line}");
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            family = name;
        } else {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            let suffix = name.split('{').next().expect("a name").strip_prefix(family).expect("of the family before it");
            let suffixes: &[&str] = if kinds[family] == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line}");
            assert!(
                series.insert(name.to_owned(), value.parse().expect("a number")).is_none(),
                "a duplicate series: {line}"
            );
        }
    }
    series
}

/// The metric names in the tables at the top of `metrics.rs`, here and in `weir-client`.
pub(crate) fn documented() -> BTreeSet<String> {
    let docs = [include_str!("../../src/metrics.rs"), include_str!("../../../crates/client/src/metrics.rs")];
    let names = docs.into_iter().flat_map(str::lines).filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'));
    names.map(|(name, _)| name.to_owned()).collect()
}

#[tokio::test]
async fn the_docs_name_every_family_and_no_other() {
    let (_app, agent) = start().await;
    let patient =
        json!({"key": [{"header": "x-key"}], "onLimit": {"status": 429, "headers": "IETF", "maxWaitMillis": 1}});
    let patient = with(rule("keyed", &[daily("d", "TokenBucket", 1)]), patient);
    let patient = with(patient, json!({"ban": {"after": 2, "withinMillis": 1000, "forMillis": 1000}}));
    let patient = with(patient, json!({"cost": {"requestHeader": {"name": "x-cost", "most": 1}}}));
    let parallel = json!({"name": "parallel", "action": "Limit", "concurrency": {"name": "p", "limit": 1}});
    let plain = rule("plain", &[daily("d", "TokenBucket", 1)]);
    agent
        .apply(&snapshot(3, &[with(policy("p", &[patient, parallel, plain]), json!({"deadlineMillis": 60_000}))]))
        .await;
    let (_, text) = agent.telemetry("/metrics").await;
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let shown: BTreeSet<_> =
        families.map(|(name, _)| name.to_owned()).filter(|name| name.starts_with("weir_")).collect();
    // Only agents with TLS on the control port, with keys for tokens, or with stores have these metrics, and only rate
    // limit services.
    let rare = ["weir_control_", "weir_jwks_", "weir_quota_", "weir_service_", "weir_store_"];
    let (others, documented): (BTreeSet<_>, _) =
        documented().into_iter().partition(|name| rare.iter().any(|prefix| name.starts_with(prefix)));
    assert_eq!(shown, documented);
    assert_eq!(others.len(), 18, "{others:?}");
}

#[tokio::test]
async fn connections_and_requests_are_counted_by_protocol() {
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let of = |family: &str, protocol: &str| format!("weir_protocol_{family}{{protocol=\"{protocol}\"}}");
    let mut open: Vec<TcpStream> = Vec::new();
    for _ in 0..3 {
        let mut stream = agent.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        open.push(stream);
    }
    open.push(agent.connect().await);
    agent.until_metric(&of("requests_total", "http1"), 3.0).await;
    let mut http2 = agent.http2().await;
    for _ in 0..2 {
        let request = http::Request::get("http://a/").body(crate::support::empty()).expect("valid");
        assert_eq!(http2.send_request(request).await.expect("a response").status(), 200);
    }
    for (series, value) in [
        ("weir_connections".to_owned(), 5.0),
        ("weir_connections_accepted_total".to_owned(), 5.0),
        (of("connections", "http1"), 3.0),
        (of("connections", "http2"), 1.0),
        (of("connections", "websocket"), 0.0),
        (of("requests_total", "http2"), 2.0),
    ] {
        assert_eq!(agent.metric(&series).await, Some(value), "{series}");
    }
    drop((open, http2));
    agent.until_metric(&of("connections", "http1"), 0.0).await;
    agent.until_metric(&of("connections", "http2"), 0.0).await;
    agent.until_metric("weir_connections", 0.0).await;
    for (series, value) in [(of("connections_total", "http1"), 3.0), (of("connections_total", "http2"), 1.0)] {
        assert_eq!(agent.metric(&series).await, Some(value), "{series}");
    }
}

#[tokio::test]
async fn requests_that_no_rule_matches_are_counted_over_both_protocols_and_across_changes() {
    const UNMATCHED: &str = "weir_unmatched_requests_total";
    let (_app, agent) = start().await;
    agent.get("/", &[]).await;
    assert_eq!(agent.metric(UNMATCHED).await, Some(1.0), "there are no rules yet");
    let api = with(rule("api", &[daily("d", "TokenBucket", 1)]), json!({"match": [{"paths": ["/api"]}]}));
    let health = json!({"name": "health", "action": "Bypass", "match": [{"paths": ["/healthz"]}]});
    let tried = with(rule("tried", &[daily("d", "TokenBucket", 1)]), json!({"match": [{"paths": ["/tried"]}]}));
    let tried = with(policy("shadow", &[tried]), json!({"mode": "Shadow"}));
    agent.apply(&snapshot(1, &[policy("p", &[api, health]), tried])).await;
    for path in ["/api", "/api", "/healthz", "/tried", "/other", "/other"] {
        agent.get(path, &[]).await;
    }
    assert_eq!(agent.metric(UNMATCHED).await, Some(3.0), "refused, bypassed and shadow requests are matched");
    let mut http2 = agent.http2().await;
    for path in ["/api", "/other"] {
        let request = http::Request::get(format!("http://a{path}")).body(crate::support::empty()).expect("valid");
        http2.send_request(request).await.expect("a response");
    }
    assert_eq!(agent.metric(UNMATCHED).await, Some(4.0));
}

#[tokio::test]
async fn cpu_time_has_fractions_of_a_second() {
    let (_app, agent) = start().await;
    let used = async || agent.metric("process_cpu_seconds_total").await.expect("the metric exists");
    let first = used().await;
    assert!(first > 0.0 && first.fract() > 0.0, "{first}");
    for _ in 0..20 {
        agent.get("/", &[]).await;
    }
    let next = used().await;
    assert!(next > first && next < first + 1.0, "{first}, {next}");
}

#[tokio::test]
async fn limits_and_policies_are_shown_as_they_are_in_force() {
    let (_app, agent) = start().await;
    let limits = [
        json!({"name": "burst", "strategy": "TokenBucket", "requests": 10, "periodMillis": 500, "burst": 40}),
        json!({"name": "spaced", "strategy": "GCRA", "requests": 5, "periodMillis": 1000}),
        json!({"name": "daily", "strategy": "FixedWindow", "requests": 1000, "periodMillis": 86_400_000}),
    ];
    let gold = json!({"keys": [["gold"]], "limits": [json!({"name": "daily", "strategy": "FixedWindow", "requests": 9000,
        "periodMillis": 86_400_000})]});
    let keyed = with(rule("each", &limits), json!({"key": [{"header": "x-key"}], "overrides": [gold]}));
    let shadow = with(policy("p", &[keyed]), json!({"mode": "Shadow", "revision": "abc"}));
    agent.apply(&snapshot(1, &[shadow])).await;
    let of = |family: &str, limit: &str| {
        format!("weir_limit_{family}{{namespace=\"shop\",policy=\"p\",rule=\"each\",limit=\"{limit}\",scope=\"Pod\"}}")
    };
    let info = "weir_policy_info{namespace=\"shop\",policy=\"p\",revision=\"abc\",mode=\"Shadow\"}";
    for (series, value) in [
        (of("requests", "burst"), Some(10.0)),
        (of("period_seconds", "burst"), Some(0.5)),
        (of("burst", "burst"), Some(40.0)),
        (of("burst", "spaced"), Some(1.0)),
        (of("requests", "daily"), Some(1000.0)),
        (of("period_seconds", "daily"), Some(86_400.0)),
        (of("burst", "daily"), None),
        (info.to_owned(), Some(1.0)),
    ] {
        assert_eq!(agent.metric(&series).await, value, "{series}");
    }
    agent.apply(&snapshot(2, &[])).await;
    assert_eq!(agent.metric(info).await, None, "the series disappears with its policy");
    assert_eq!(agent.metric(&of("requests", "burst")).await, None, "the series disappears with its rule");
}

/// The number of requests can be compared with a limit only if each request costs one unit.
#[tokio::test]
async fn rules_whose_requests_cost_other_than_one_unit_are_marked() {
    let (_app, agent) = start().await;
    let named = |name: &str, change: Value| with(rule(name, &[daily("d", "TokenBucket", 9)]), change);
    let rules = [
        named("plain", json!({})),
        named("one", json!({"cost": {"fixed": 1}})),
        named("nine", json!({"cost": {"fixed": 9}})),
        named("header", json!({"cost": {"requestHeader": {"name": "x-cost", "most": 9}}})),
        json!({"name": "parallel", "action": "Limit", "concurrency": {"name": "p", "limit": 1}}),
        json!({"name": "health", "action": "Bypass", "match": [{"paths": ["/healthz"]}]}),
    ];
    agent.apply(&snapshot(1, &[policy("p", &rules)])).await;
    let (_, text) = agent.telemetry("/metrics").await;
    let marked: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("weir_rule_weighted{")).collect();
    let expected = ["nine", "header"].map(|name| format!("namespace=\"shop\",policy=\"p\",rule=\"{name}\"}} 1"));
    assert_eq!(marked, expected);
}

/// A rule that refuses everything has no headroom, and a weighted rule has that of its units.
#[tokio::test]
async fn the_headroom_of_a_rule_without_a_key_is_what_its_limits_admit_now() {
    let (_app, agent) = start().await;
    let hourly = json!({"name": "h", "strategy": "TokenBucket", "requests": 1000, "periodMillis": 86_400_000});
    let rules = [
        rule("plain", &[hourly, daily("d", "TokenBucket", 4)]),
        with(rule("two", &[daily("d", "TokenBucket", 16)]), json!({"cost": {"fixed": 2}})),
        with(rule("keyed", &[daily("d", "TokenBucket", 9)]), json!({"key": [{"header": "x-key"}]})),
    ];
    agent.apply(&snapshot(1, &[policy("p", &rules)])).await;
    let headroom = async |rule: &str| {
        let labels = format!("{{namespace=\"shop\",policy=\"p\",rule=\"{rule}\"}}");
        agent.metric(&format!("weir_rule_headroom_ratio{labels}")).await
    };
    for (status, plain, two) in
        [(200, 0.75, 0.875), (200, 0.5, 0.75), (200, 0.25, 0.625), (200, 0.0, 0.5), (429, 0.0, 0.5)]
    {
        assert_eq!(agent.get("/", &[]).await.status(), status);
        let found = (headroom("plain").await, headroom("two").await, headroom("keyed").await);
        assert_eq!(found, (Some(plain), Some(two), None));
    }
}

/// A sum over pods is right only for limits of scope Pod, so their series say which these are.
#[tokio::test]
async fn limits_say_whether_each_pod_has_them_or_all_pods_together() {
    let (_app, agent) = start().await;
    let in_store = |name: &str, store: &str| {
        let shared = json!({"store": store, "counters": format!("shop/p.{name}"), "stamp": 1, "onStoreLoss": "LocalShare",
            "sharers": 2});
        with(rule(name, &[daily("d", "TokenBucket", 7)]), json!({"shared": shared}))
    };
    let own = rule("own", &[daily("d", "TokenBucket", 7)]);
    let rules = [own.clone(), in_store("fleet", "operator"), in_store("shared", "shop/limits")];
    let stores = json!([{"name": "operator", "backend": "operator"}, redis_at(1)]);
    agent.apply(&with(snapshot(1, &[policy("p", &rules)]), json!({"stores": stores}))).await;
    let of = |family: &str, rule: &str, scope: &str| {
        format!("weir_limit_{family}{{namespace=\"shop\",policy=\"p\",rule=\"{rule}\",limit=\"d\",scope=\"{scope}\"}}")
    };
    for (rule, scope) in [("own", "Pod"), ("fleet", "Fleet"), ("shared", "Shared")] {
        for (family, value) in [("requests", 7.0), ("period_seconds", 86_400.0), ("burst", 7.0)] {
            let series = of(family, rule, scope);
            assert_eq!(agent.metric(&series).await, Some(value), "{series}");
        }
    }
    let moved = with(own, json!({"name": "fleet"}));
    agent.apply(&snapshot(2, &[policy("p", &[moved])])).await;
    assert_eq!(agent.metric(&of("requests", "fleet", "Pod")).await, Some(7.0));
    assert_eq!(agent.metric(&of("requests", "fleet", "Fleet")).await, None, "the rule has another scope now");
}

#[tokio::test]
async fn every_family_has_help_and_type_and_no_series_is_there_twice() {
    let (_app, agent) = start().await;
    let (_, text) = agent.telemetry("/metrics").await;
    let before = parse(&text);
    assert!(!before.keys().any(|name| name.starts_with("weir_snapshot_info")), "{text}");

    let keyed =
        with(rule("keyed", &[daily("d", "TokenBucket", 1)]), json!({"key": [{"header": "x-key"}], "maxKeys": 64}));
    let bypass = json!({"name": "health", "action": "Bypass", "match": [{"paths": ["/healthz"]}]});
    let shadow = with(policy("tried", &[rule("all", &[daily("d", "FixedWindow", 1)])]), json!({"mode": "Shadow"}));
    agent.apply(&snapshot(3, &[policy("p", &[keyed, bypass]), shadow])).await;
    for key in ["hunter2", "hunter2", "letmein"] {
        agent.get("/", &[("x-key", key)]).await;
    }
    agent.get("/healthz", &[]).await;

    let (_, text) = agent.telemetry("/metrics").await;
    let after = parse(&text);
    let of = |policy: &str, rule: &str| format!("{{namespace=\"shop\",policy=\"{policy}\",rule=\"{rule}\"");
    for (name, value) in [
        (format!("weir_requests_total{},decision=\"allowed\"}}", of("p", "keyed")), 2.0),
        (format!("weir_requests_total{},decision=\"limited\"}}", of("p", "keyed")), 1.0),
        (format!("weir_requests_total{},decision=\"bypassed\"}}", of("p", "health")), 1.0),
        (format!("weir_requests_total{},decision=\"shadow_limited\"}}", of("tried", "all")), 1.0),
        (format!("weir_key_table_keys{}}}", of("p", "keyed")), 2.0),
        (format!("weir_key_headroom_ratio{}}}", of("p", "keyed")), 0.0),
        (format!("weir_key_exhausted_ratio{}}}", of("p", "keyed")), 1.0),
        (format!("weir_key_evictions_total{}}}", of("p", "keyed")), 0.0),
        (format!("weir_key_overflow_total{}}}", of("p", "keyed")), 0.0),
        ("weir_snapshot_sequence".to_owned(), 3.0),
        ("weir_snapshot_info{revision=\"r3\",origin=\"pushed\"}".to_owned(), 1.0),
    ] {
        assert_eq!(after.get(&name), Some(&value), "{name} in\n{text}");
    }
    for name in ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds", "process_max_fds"] {
        assert!(after[name] > 0.0, "{name} in\n{text}");
    }
    assert!(after["weir_snapshot_in_force_since_timestamp_seconds"] > 1_700_000_000.0, "{text}");
    assert!(!text.contains("hunter2") && !text.contains("letmein"), "no key in a label\n{text}");
}
