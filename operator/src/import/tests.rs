use clap::Parser as _;
use serde_json::{Value, json};

use super::*;

fn imported(text: &str, more: &[&str]) -> Imported {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.yaml");
    fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    Cli::parse_from([&["test", "envoy-ratelimit", &path], more].concat()).import.run()
}

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(subcommand)]
    import: Import,
}

fn policies(text: &str, more: &[&str]) -> (Vec<Value>, Vec<String>) {
    match imported(text, more) {
        Imported::Policies(text, notes) => (documents::values(&text), notes),
        other => panic!("{other:?}"),
    }
}

fn refused(text: &str) -> Vec<String> {
    let Imported::Refused(faults) = imported(text, &[]) else { panic!("imported") };
    faults.into_iter().map(|fault| fault.split_once(".yaml: ").unwrap().1.to_owned()).collect()
}

const FILE: &str = "
domain: shop
descriptors:
- {key: path, value: /checkout, rate_limit: {unit: second, requests_per_unit: 50}}
- {key: path, value: /search*, share_threshold: true, rate_limit: {unit: MINUTE, requests_per_unit: 9, name: search}}
- key: path
  rate_limit: {unit: hour, requests_per_unit: 7}
  shadow_mode: true
  descriptors:
  - {key: user, value: 7, rate_limit: {unlimited: true, replaces: [{name: search}]}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 0}}
";

#[test]
fn a_file_becomes_rules_that_exclude_their_siblings() {
    let (all, notes) = policies(FILE, &[]);
    assert_eq!((all.len(), notes), (1, Vec::new()));
    let path = json!({"key": "path", "exceptValues": ["/checkout"], "exceptPrefixes": ["/search"]});
    let limit = |requests, per| json!([{"name": "rate", "requests": requests, "per": per, "strategy": "FixedWindow"}]);
    let rules = json!([
        {
            "name": "path-checkout", "match": [{"descriptor": [{"key": "path", "value": "/checkout"}]}],
            "scope": "Fleet", "limits": limit(50, "1s"),
        },
        {
            "name": "search", "match": [{"descriptor": [{"key": "path", "prefix": "/search"}]}],
            "scope": "Fleet", "limits": limit(9, "1m"),
        },
        {
            "name": "path", "match": [{"descriptor": [path]}], "mode": "Shadow", "key": [{"descriptor": "path"}],
            "scope": "Fleet", "limits": limit(7, "1h"),
        },
        {
            "name": "path-user-7", "match": [{"descriptor": [path, {"key": "user", "value": "7"}]}],
            "action": "Bypass", "replaces": ["search"],
        },
        {
            "name": "path-user", "match": [{"descriptor": [path, {"key": "user", "exceptValues": ["7"]}]}],
            "action": "Deny",
        },
    ]);
    assert_eq!(all[0]["spec"]["rules"], rules);
    assert_eq!((&all[0]["metadata"]["name"], &all[0]["spec"]["domain"]), (&json!("shop"), &json!("shop")));
    assert_eq!(all[0]["spec"]["targetRefs"], json!([{"kind": "Deployment", "name": "weir-operator-rate-limit"}]));
}

#[test]
fn flags_select_the_target_and_the_scope() {
    let more = ["--scope", "shared", "--store", "limits", "--target", "StatefulSet/rls"];
    let (all, _) = policies(FILE, &more);
    let rule = &all[0]["spec"]["rules"][0];
    assert_eq!((&rule["scope"], &rule["shared"]["storeRef"]["name"]), (&json!("Shared"), &json!("limits")));
    assert_eq!(all[0]["spec"]["targetRefs"][0], json!({"kind": "StatefulSet", "name": "rls"}));
    let (all, _) = policies(FILE, &["--scope", "pod", "--selector", "app=gateway,tier=front"]);
    assert_eq!(all[0]["spec"]["selector"], json!({"matchLabels": {"app": "gateway", "tier": "front"}}));
    assert_eq!(all[0]["spec"].get("targetRefs"), None);
    assert_eq!(all[0]["spec"]["rules"][0].get("scope"), None);
    assert!(Cli::try_parse_from(["test", "envoy-ratelimit", "x", "--scope", "shared"]).is_err(), "no store");
    assert!(Cli::try_parse_from(["test", "envoy-ratelimit", "x", "--target", "rls"]).is_err());
    assert!(Cli::try_parse_from(["test", "envoy-ratelimit", "x", "--selector", "app"]).is_err());
}

/// A sibling with a prefix takes values from later siblings, but not from earlier ones.
#[test]
fn the_order_of_prefixes_counts() {
    let node =
        |value: &str| format!("- {{key: path, value: '{value}', rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    let nodes = ["", "fo*", "foo*", "f*", "foobar"].map(node).concat();
    let text = format!("domain: d\ndescriptors:\n{nodes}");
    let (all, notes) = policies(&text, &[]);
    let entries: Vec<_> =
        all[0]["spec"]["rules"].as_array().unwrap().iter().map(|rule| &rule["match"][0]["descriptor"][0]).collect();
    assert_eq!(
        entries,
        [
            &json!({"key": "path", "exceptValues": ["foobar"], "exceptPrefixes": ["f"]}),
            &json!({"key": "path", "prefix": "fo", "exceptValues": ["foobar"]}),
            &json!({"key": "path", "prefix": "f", "exceptValues": ["foobar"], "exceptPrefixes": ["fo"]}),
            &json!({"key": "path", "value": "foobar"}),
        ]
    );
    assert!(
        notes[0].ends_with("descriptors[2]: an earlier sibling takes all its values, so it has no effect"),
        "{notes:?}"
    );
}

#[test]
fn more_than_64_rules_become_several_policies() {
    let nodes: String = (0..130)
        .map(|number| format!("- {{key: k{number}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n"))
        .collect();
    let (all, _) = policies(&format!("domain: My Shop\ndescriptors:\n{nodes}"), &[]);
    let names: Vec<_> = all.iter().map(|policy| policy["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["my-shop", "my-shop-2", "my-shop-3"]);
    let counts: Vec<_> = all.iter().map(|policy| policy["spec"]["rules"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [64, 64, 2]);
}

#[test]
fn what_has_no_equivalent_is_refused_with_its_place() {
    let one = |node: &str| refused(&format!("domain: d\ndescriptors:\n- {node}\n"));
    for (node, fault) in [
        (
            "{key: a, rate_limit: {unit: week, requests_per_unit: 1}}",
            "descriptors[0]: rate_limit.unit: the longest period",
        ),
        ("{key: a, rate_limit: {unit: decade}}", "descriptors[0]: rate_limit.unit: \"decade\" is not a unit"),
        ("{key: a, quota_mode: true, rate_limit: {unit: day}}", "descriptors[0]: quota_mode: has no equivalent"),
        ("{key: a, limit: {unit: day}}", "descriptors[0].limit: unknown field `limit`"),
        ("{key: a, value: [1]}", "descriptors[0].value: must be a text"),
        ("{key: 'a*'}", "descriptors[0]: key: must not be empty, and must not end"),
        ("{key: a, value: b, share_threshold: true}", "descriptors[0]: share_threshold: is valid only"),
        (
            "{key: a, descriptors: [{key: a, rate_limit: {unit: day}}]}",
            "descriptors[0].descriptors[0]: key: a is on two",
        ),
        ("{key: a}\n- {key: a}", "descriptors[1]: has the key and the value of an earlier sibling"),
        (
            "{key: a, rate_limit: {unit: day, name: n, replaces: [{name: n}]}}",
            "descriptors[0]: rate_limit.replaces: must have the names of other limits",
        ),
    ] {
        let faults = one(node);
        assert!(faults.len() == 1 && faults[0].starts_with(fault), "{node}: {faults:?}");
    }
    assert_eq!(refused("domain: ''\n"), ["domain: must not be empty"]);
    assert!(refused("domain: [\n")[0].contains("line 1"), "{:?}", refused("domain: [\n"));
    assert!(matches!(imported("domain: d\n", &["/does/not/exist"]), Imported::Unreadable(_)));
}
