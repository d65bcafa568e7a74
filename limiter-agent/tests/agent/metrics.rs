//! `/metrics` as a scraper reads it.

use std::collections::{HashMap, HashSet};

use crate::support::{Agent, App, daily, policy, rule, snapshot, with};
use serde_json::json;

/// A scrape: the value of each series, after a check of everything that the text format asks for.
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
            assert!(series.insert(name.to_owned(), value.parse().expect("a number")).is_none(), "twice: {line}");
        }
    }
    series
}

#[tokio::test]
async fn every_family_has_help_and_type_and_no_series_is_there_twice() {
    let app = App::start().await;
    let agent = Agent::start(app.address, &[]);
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
