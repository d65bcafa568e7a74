use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use crate::tables::rows;

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
        Imported::Policies(text, notes) => {
            assert_eq!(documents::read(&text).cluster_findings, [], "{text}");
            (documents::values(&text), notes)
        }
        other => panic!("{other:?}"),
    }
}

fn refused(text: &str) -> Vec<String> {
    let Imported::Refused(faults) = imported(text, &[]) else { panic!("imported") };
    faults.into_iter().map(|fault| fault.split_once(".yaml: ").unwrap().1.to_owned()).collect()
}

fn wrong_usage(more: &[&str]) -> Vec<String> {
    match imported(FILE, more) {
        Imported::Unreadable(faults) => faults,
        other => panic!("{more:?}: {other:?}"),
    }
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

/// Each fault is reported once, however many policies there are, and with the flag.
#[test]
fn flags_that_are_not_valid_are_wrong_usage() {
    let shared = ["--scope", "shared", "--store"];
    for (more, faults) in [
        (&["--target", "Pod/x"][..], &["--target: must be one of \"Deployment\", \"StatefulSet\""][..]),
        (&["--target", "deployment/x"], &["--target: must be one of"]),
        (&["--target", "Deployment/X_y"], &["--target: is \"X_y\": name must be the name of an object"]),
        (&["--selector", "a b=c"], &["--selector: must have valid names of labels, such as app"]),
        (&["--selector", "a=ü"], &["--selector: must have valid values of labels: letters"]),
        (&["--selector", "a=1,a=2"], &["--selector: has the label a twice: keep one of them"]),
        (&[shared[0], shared[1], shared[2], "Foo"], &["--store: is \"Foo\": name must be the name of an object"]),
        (&["--store", "foo"], &["--store: is valid only with --scope shared: add --scope shared, or remove"]),
        (&["--scope", "pod", "--store", "foo"], &["--store: is valid only with --scope shared"]),
        (&["--target", "Pod/x", "--store", "foo"], &["--store: is valid only", "--target: must be one of"]),
    ] {
        let found = wrong_usage(more);
        let is_same = found.len() == faults.len() && found.iter().zip(faults).all(|(it, start)| it.starts_with(start));
        assert!(is_same, "{more:?}: {found:?}");
    }
    let did_you_mean = wrong_usage(&["--target", "deployment/x"]);
    assert!(did_you_mean[0].contains("did you mean \"Deployment\"?"), "{did_you_mean:?}");
}

/// envoyproxy/ratelimit reads a number or a boolean in a field of text as it is written.
#[test]
fn words_without_quotes_are_kept_as_they_are_written() {
    let words = ["50", "true", "True", "0x10", "+5", "-0", "1.10", "12345678901234567890123", "010", "yes", "1_000"];
    let limit = "rate_limit: {unit: day, requests_per_unit: 0x10}";
    let nodes: String = words.iter().map(|word| format!("- {{key: 5, value: {word}, {limit}}}\n")).collect();
    let (all, _) = policies(&format!("domain: 1.50\ndescriptors:\n{nodes}"), &["--selector", "on=no"]);
    assert_eq!(all[0]["spec"]["selector"], json!({"matchLabels": {"on": "no"}}));
    let rules = all[0]["spec"]["rules"].as_array().unwrap();
    let entries: Vec<_> = rules.iter().map(|rule| &rule["match"][0]["descriptor"][0]).collect();
    let expected: Vec<_> = words.iter().map(|word| json!({"key": "5", "value": word})).collect();
    assert_eq!(entries, expected.iter().collect::<Vec<_>>());
    assert_eq!((&all[0]["spec"]["domain"], &rules[0]["limits"][0]["requests"]), (&json!("1.50"), &json!(16)));
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

/// envoyproxy/ratelimit accepts a list without a value, and metadata for its answers.
#[test]
fn parts_without_an_effect_are_noted() {
    let text = "domain: d\ndescriptors:\n- key: a\n  metadata: {plan: {tier: gold}}\n  detailed_metric: true\n  \
                value_to_metric: true\n  descriptors:\n  rate_limit: {unit: day, requests_per_unit: 1}\n";
    let (all, notes) = policies(text, &[]);
    assert_eq!(all[0]["spec"]["rules"][0]["match"][0]["descriptor"], json!([{"key": "a"}]));
    let expected = [
        "descriptors[0].metadata: answers contain no metadata, so it has no effect",
        "descriptors[0].detailed_metric: no metric has values as labels, so it has no effect",
        "descriptors[0].value_to_metric: no metric has values as labels, so it has no effect",
    ];
    assert_eq!(notes.len(), expected.len());
    assert!(notes.iter().zip(expected).all(|(note, end)| note.ends_with(end)), "{notes:?}");
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
    for [node, fault] in rows(
        r#"
        {key: a, rate_limit: {unit: week, requests_per_unit: 1}} | descriptors[0]: rate_limit.unit: the longest period
        {key: a, rate_limit: {unit: decade}} | descriptors[0]: rate_limit.unit: "decade" is not a unit
        {key: a, quota_mode: true, rate_limit: {unit: day}} | descriptors[0]: quota_mode: has no equivalent
        {key: a, rate_limit: {unit: day, requests_per_unit: -4}} | descriptors[0].rate_limit.requests_per_unit: is -4, and must be a whole number from 0 to 4294967295
        {key: a, limit: {unit: day}} | descriptors[0].limit: unknown field `limit`
        {key: a, value: [1]} | descriptors[0].value: must be a text
        {key: 'a*'} | descriptors[0]: key: must not be empty, and must not contain
        {key: 'a*b'} | descriptors[0]: key: must not be empty, and must not contain
        {key: a, value: 'b*c'} | descriptors[0]: value: has a * before its end
        {key: a, value: '*c'} | descriptors[0]: value: has a * before its end
        {key: a, value: 'b**'} | descriptors[0]: value: has a * before its end
        {key: a, rate_limit: {unlimited: true, unit: DAY}} | descriptors[0]: rate_limit: has unlimited and a unit, which envoyproxy/ratelimit refuses
        {key: a, value: b, share_threshold: true} | descriptors[0]: share_threshold: is valid only
        {key: a, value: !!int 7} | descriptors[0].value: must be a text: write it in quotes
        {key: a, value: &x 7, descriptors: [{key: b, value: 'c'}]} | descriptors[0].value: must be a text: write it
        shop | descriptors[0]: invalid type: string "shop", expected a map
        [shop] | descriptors[0]: invalid type: sequence, expected a map
        {key: a, rate_limit: [3, day]} | descriptors[0].rate_limit: invalid type: sequence, expected a map
        {key: a, rate_limit: {unit: day, replaces: [n]}} | descriptors[0].rate_limit.replaces[0]: invalid type: string "n", expected a map
        {key: a, descriptors: [{key: a, rate_limit: {unit: day}}]} | descriptors[0].descriptors[0]: key: a is on two
        {key: a, descriptors: [{key: a, descriptors: [{key: b, rate_limit: {unit: day}}]}]} | descriptors[0].descriptors[0].descriptors[0]: key: a is on two levels
        {key: a, rate_limit: {unit: day, name: n, replaces: [{name: n}]}} | descriptors[0]: rate_limit.replaces: must have the names of other limits
        "#,
    ) {
        let faults = one(node);
        assert!(faults.len() == 1 && faults[0].starts_with(fault), "{node}: {faults:?}");
    }
    let same = one("{key: a}\n- {key: a}");
    assert!(
        same.len() == 1 && same[0].starts_with("descriptors[1]: has the key and the value of an earlier"),
        "{same:?}"
    );
    assert_eq!(refused("domain: ''\n"), ["domain: must not be empty"]);
    assert_eq!(refused("- shop\n"), ["invalid type: sequence, expected a map"]);
    assert_eq!(refused("shop\n"), ["invalid type: string \"shop\", expected a map"]);
    for text in ["", "\n", "# nothing\n", "---\n", "---\n---\n"] {
        assert_eq!(refused(text), ["is empty: a file must have a domain and its descriptors"], "{text:?}");
    }
    assert_eq!(refused("domain: d\n---\ndomain: e\n"), ["must have one YAML document: split the file"]);
    assert!(refused("domain: [\n")[0].contains("line 1"), "{:?}", refused("domain: [\n"));
    assert!(matches!(imported("domain: d\n", &["/does/not/exist"]), Imported::Unreadable(_)));
    let Imported::Unreadable(faults) = imported("domain: d\n", &["/dev/zero"]) else { panic!("imported") };
    assert_eq!(faults, ["/dev/zero: is larger than 8388608 bytes: split it"]);
}

/// The limit of a descriptor depends on its siblings in other files, and `replaces` names limits in them.
#[test]
fn two_files_of_one_domain_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, domain: &str| {
        let path = folder.path().join(name);
        let limit = "rate_limit: {unit: day, requests_per_unit: 5}";
        fs::write(&path, format!("domain: {domain}\ndescriptors: [{{key: a, {limit}}}]\n")).unwrap();
        path.display().to_string()
    };
    let (a, b, c) = (path("a.yaml", "shop"), path("b.yaml", "other"), path("c.yaml", "shop"));
    let run = |files: &[&String]| {
        let files = files.iter().map(|file| file.as_str());
        Cli::parse_from(["test", "envoy-ratelimit"].into_iter().chain(files)).import.run()
    };
    assert!(matches!(run(&[&a, &b]), Imported::Policies(..)), "two domains");
    let Imported::Refused(faults) = run(&[&a, &b, &c]) else { panic!("imported") };
    let fix = "put all descriptors of a domain into one file";
    assert_eq!(faults, [format!("{c}: domain: \"shop\" is already in {a}: {fix}")]);
}

/// The bounds of a policy. `refused` shows that each fault begins with the file.
#[test]
fn what_a_policy_cannot_contain_is_refused_with_its_place() {
    let (limit, tens) = ("rate_limit: {unit: day, requests_per_unit: 5}", |count: usize| "0123456789".repeat(count));
    let (key, value) = (tens(13), tens(52));
    let good: String = (0..70).map(|number| format!("- {{key: k{number}, {limit}}}\n")).collect();
    let last = |node: &str| refused(&format!("domain: d\ndescriptors:\n{good}- {node}\n"));
    for (node, fault) in [
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 2000000000}}",
            "descriptors[70]: rate_limit.requests_per_unit: is 2000000000, and the most is 1000000000: choose a smaller",
        ),
        (&format!("{{key: x{key}, {limit}}}"), "descriptors[70]: key: has more than 128 characters"),
        (&format!("{{key: a, value: x{value}, {limit}}}"), "descriptors[70]: value: has more than 512 characters"),
        (
            &format!("{{key: a, descriptors: [{{key: b, value: x{value}*, {limit}}}]}}"),
            "descriptors[70].descriptors[0]: value: has more than 512 characters",
        ),
    ] {
        let faults = last(node);
        assert!(faults.len() == 1 && faults[0].starts_with(fault), "{faults:?}");
    }
    assert_eq!(refused(&format!("domain: x{key}\n")), ["domain: has more than 128 characters"]);

    let (exact, longest) = ("é".repeat(128), "é".repeat(512));
    let node = |value: &str| format!("- {{key: {exact}, value: '{value}', {limit}}}\n");
    let text = format!("domain: {exact}\ndescriptors:\n{}{}", node(&longest), node(&format!("x{}*", &longest[2..])));
    let (all, _) = policies(&text, &[]);
    assert_eq!(all[0]["spec"]["rules"].as_array().unwrap().len(), 2, "the longest texts that are valid");
    let (all, _) = policies(
        "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, requests_per_unit: 4294967295}}]",
        &[],
    );
    assert_eq!(all[0]["spec"]["rules"][0]["action"], "Bypass");
}

/// No check of the importer finds this fault: the list of replaced rules has at most 64 names.
#[test]
fn a_rule_that_a_cluster_refuses_is_named_by_its_descriptor() {
    let named = |name: &str| format!("rate_limit: {{unit: day, requests_per_unit: 5, name: {name}}}");
    let mut nodes: String =
        (0..70).map(|number| format!("- {{key: k{number}, {}}}\n", named(&format!("n{number}")))).collect();
    let replaced = vec!["{name: n69}"; 65].join(", ");
    nodes.push_str(&format!("- {{key: a, rate_limit: {{unlimited: true, replaces: [{replaced}]}}}}\n"));
    let faults = refused(&format!("domain: d\ndescriptors:\n{nodes}"));
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with("descriptors[70]: its rule is not valid: replaces: "), "{faults:?}");
}

/// envoyproxy/ratelimit compares texts of the form `key_value`, and Weir compares keys.
#[test]
fn values_that_another_key_takes_are_noted() {
    let notes = |descriptors: &str| policies(&format!("domain: d\ndescriptors:\n{descriptors}"), &[]).1;
    let limit = "rate_limit: {unit: hour, requests_per_unit: 1}";
    let node = |value: &str| format!("- {{key: user{value}, {limit}}}\n");
    let other = node("_id");
    for (first, text) in [
        (node(", value: '*'"), "user_*"),
        (node(", value: 'i*'"), "user_i*"),
        (node(", value: 'id_7*'"), "user_id_7*"),
        (node(", value: id_7"), "user_id_7"),
    ] {
        let told = notes(&format!("{first}{other}"));
        assert_eq!(told.len(), 1, "{text}: {told:?}");
        let note = format!(
            "descriptors[0]: envoyproxy/ratelimit compares the text {text} also with values of the key user_id"
        );
        assert!(told[0].contains(&note), "{told:?}");
    }
    for first in [node(""), node(", value: 'x*'"), node(", value: id"), node("s, value: '*'")] {
        assert_eq!(notes(&format!("{first}{other}")), Vec::<String>::new(), "{first}");
    }
}
