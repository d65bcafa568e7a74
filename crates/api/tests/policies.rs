//! Checks valid and invalid policies without a cluster. `e2e/tests/validation.rs` sends the same files to a real
//! apiserver.
//!
//! A file under `bad/` begins with one comment line for each fault: `# path: message`. Run this test with
//! `WEIR_BLESS=1` to update these lines, and review the change with `git diff`.

use std::{fs, path::Path};

use serde_json::Value;
use weir_api::{
    Definition,
    check::{self, FaultKind},
};

fn files(directory: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut files: Vec<_> = fs::read_dir(&root)
        .unwrap_or_else(|error| panic!("{}: {error}", root.display()))
        .map(|entry| entry.expect("a directory that can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("a file that can be read")))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no policies in {}", root.display());
    files
}

fn value(text: &str) -> Value {
    serde_yaml::from_str(text).expect("YAML")
}

#[test]
fn good_policies_have_no_faults() {
    for (path, text) in files("tests/policies/good") {
        assert_eq!(check::document(&value(&text)), [], "{path}");
    }
}

#[test]
fn bad_policies_have_the_faults_that_they_say() {
    let mut wrong = Vec::new();
    for (path, text) in files("tests/policies/bad") {
        let (comments, body): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with('#'));
        let found: Vec<_> = check::document(&value(&text)).iter().map(|fault| format!("# {fault}")).collect();
        assert!(!found.is_empty(), "{path} is accepted");
        if found == comments {
            continue;
        }
        if std::env::var_os("WEIR_BLESS").is_some() {
            let lines: Vec<&str> = found.iter().map(String::as_str).chain(body).collect();
            fs::write(&path, lines.join("\n") + "\n").expect("a file that can be written");
        }
        wrong.push(format!("{path}\n  expected {comments:#?}\n  found {found:#?}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A parsed policy has the same content as the document with defaults: parsing neither drops nor adds fields.
#[test]
fn types_and_schema_agree_on_defaults() {
    for (path, text) in files("tests/policies/good") {
        let value = value(&text);
        if value["kind"] == "RateLimitStore" {
            let store = check::parse_store(&value).unwrap_or_else(|faults| panic!("{path}: {faults:?}"));
            let written = serde_json::to_value(&store).expect("a store can be serialised");
            assert_eq!(check::parse_store(&written), Ok(store), "{path}");
            continue;
        }
        let policy = check::parse(&value).unwrap_or_else(|faults| panic!("{path}: {faults:?}"));
        let written = serde_json::to_value(&policy).expect("a policy can be serialised");
        assert_eq!(check::parse(&written), Ok(policy), "{path}");
    }
}

#[test]
fn examples_are_valid() {
    for (path, text) in files("../../examples") {
        for document in serde_yaml::Deserializer::from_str(&text) {
            let document = serde::Deserialize::deserialize(document).expect("YAML");
            assert_eq!(check::document(&document), [], "{path}");
        }
    }
}

/// `review` reports faults for the same documents as `document`, without the apiserver's prefixes.
#[test]
fn review_finds_faults_in_the_same_documents() {
    let is_store = |document: &Value| document["kind"] == "RateLimitStore";
    for (path, text) in files("tests/policies/good") {
        let document = value(&text);
        if is_store(&document) {
            assert_eq!(check::review_store(&document), check::parse_store(&document), "{path}");
        } else {
            assert_eq!(check::review(&document), check::parse(&document), "{path}");
        }
    }
    for (path, text) in files("tests/policies/bad") {
        let document = value(&text);
        let faults = if is_store(&document) {
            check::review_store(&document).expect_err(&path)
        } else {
            check::review(&document).expect_err(&path)
        };
        for fault in faults {
            let messages = fault.to_string();
            assert!(
                !messages.contains("<nil>") && !messages.contains("in body") && !messages.contains("Invalid value"),
                "{path}: {messages}"
            );
        }
    }
}

#[test]
fn review_says_what_to_write() {
    let messages = |spec: Value| -> Vec<String> {
        let document = serde_json::json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": {"name": "p"}, "spec": spec,
        });
        check::review(&document).expect_err("faults").iter().map(ToString::to_string).collect()
    };
    let limit = serde_json::json!({"name": "a", "requests": 5, "per": "1s"});
    let all = |rules: Value| serde_json::json!({"selector": {"matchLabels": {"app": "a"}}, "rules": rules});

    // An unknown field does not hide other faults.
    let found = messages(all(serde_json::json!([
        {"name": "a", "mtach": [{"paths": "/a"}], "limits": [{"name": "a", "request": 0, "per": "1s"}]},
    ])));
    assert_eq!(
        found,
        [
            "spec.rules[0].mtach: unknown field: did you mean \"match\"?",
            "spec.rules[0].limits[0].request: unknown field: did you mean \"requests\"?",
            "spec.rules[0].limits[0].requests: is 0, but should be greater than or equal to 1",
            "spec.rules[0].match[0].paths: must be a list, not the text \"/a\"",
        ]
    );
    assert_eq!(messages(all(serde_json::json!({"name": "a"}))), ["spec.rules: must be a list, not a group of fields"]);
    assert_eq!(
        messages(all(serde_json::json!([{"name": "a", "limits": [{"name": "a", "requests": "5", "per": "1s"}]}]))),
        ["spec.rules[0].limits[0].requests: must be a whole number, not the text \"5\""]
    );
    assert_eq!(
        messages(all(serde_json::json!([{"name": "a", "limits": [{"name": "a", "requests": 5}]}]))),
        [
            "spec.rules[0].limits[0]: requests and per are required: add both for a rate, or use concurrent to limit how \
             many requests are in flight"
        ]
    );
    let found = messages(all(serde_json::json!([{"name": "a", "action": "bypass", "limits": [limit]}])));
    assert_eq!(
        found,
        [
            "spec.rules[0].action: must be one of \"Limit\", \"Bypass\", \"Deny\", not \"bypass\": did you mean \"Bypass\"?"
        ]
    );
    let document =
        serde_json::json!({"apiVersion": "weir.dev/v1", "kind": "RateLimitPolicy", "metadata": {"name": "p"}});
    let found: Vec<_> = check::review(&document).expect_err("faults").iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "apiVersion: must be \"weir.dev/v1alpha1\" for a rate limit policy, not \"weir.dev/v1\"",
            "spec: is missing and must be set",
        ]
    );
}

/// Programs tell a field of a newer definition by the kind of its fault.
#[test]
fn an_unknown_field_has_its_own_kind() {
    let limit = serde_json::json!({"name": "a", "requests": 0, "newer": 1, "per": "unknown field"});
    let document = serde_json::json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": {"name": "p"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "rules": [{"name": "a", "limits": [limit]}]},
    });
    let kinds = |faults: Vec<check::Fault>| faults.into_iter().map(|it| (it.path, it.kind)).collect::<Vec<_>>();
    let field = |name: &str| format!("spec.rules[0].limits[0].{name}");
    let unknown = (field("newer"), FaultKind::UnknownField);
    assert_eq!(kinds(check::document(&document)), std::slice::from_ref(&unknown));
    let of_review = kinds(check::review(&document).expect_err("faults"));
    assert_eq!(of_review, [unknown, (field("per"), FaultKind::Invalid), (field("requests"), FaultKind::Invalid)]);
}

#[test]
fn an_unknown_value_has_its_own_kind() {
    let found = |action: Value| {
        let limit = serde_json::json!({"name": "a", "requests": 5, "per": "1s"});
        let document = serde_json::json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": {"name": "p"},
            "spec": {
                "selector": {"matchLabels": {"app": "a"}},
                "rules": [{"name": "a", "action": action, "limits": [limit]}],
            },
        });
        let is_unknown = |faults: &[check::Fault]| faults.iter().any(|fault| fault.kind == FaultKind::UnknownValue);
        (is_unknown(&check::document(&document)), is_unknown(&check::review(&document).expect_err("faults")))
    };
    assert_eq!(found("Newer".into()), (true, true));
    assert_eq!(found(5.into()), (false, false), "a value of the wrong type");
}

#[test]
fn a_wrong_type_in_metadata_is_reported_with_its_field() {
    let faults = |metadata: Value| {
        let document = serde_json::json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": metadata,
            "spec": {
                "selector": {"matchLabels": {"app": "a"}},
                "rules": [{"name": "a", "limits": [{"name": "a", "requests": 5, "per": "1s"}]}],
            },
        });
        check::review(&document).expect_err("faults").iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (metadata, expected) in [
        (
            serde_json::json!({"name": "p", "labels": {"version": 5}}),
            "metadata.labels.version: invalid type: integer `5`, expected a string",
        ),
        (
            serde_json::json!({"name": "p", "namespace": ["a"]}),
            "metadata.namespace: invalid type: sequence, expected a string",
        ),
        (serde_json::json!({"name": 5}), "metadata.name: must be text, not 5"),
        (serde_json::json!({"generateName": {}}), "metadata.generateName: must be text, not a group of fields"),
        (serde_json::json!({"name": null}), "metadata.name: name or generateName is required"),
    ] {
        assert_eq!(faults(metadata.clone()), [expected], "{metadata}");
    }
}

/// Returns the paths of the fields below lists that have a default in the schema.
fn defaults_below_lists(schema: &Value, path: &str, is_below: bool, found: &mut Vec<String>) {
    if is_below && schema.get("default").is_some() {
        found.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        defaults_below_lists(field, &format!("{path}.{name}"), is_below, found);
    }
    if schema["additionalProperties"].is_object() {
        defaults_below_lists(&schema["additionalProperties"], &format!("{path}{{}}"), is_below, found);
    }
    if schema["items"].is_object() {
        defaults_below_lists(&schema["items"], &format!("{path}[]"), true, found);
    }
}

/// The apiserver would add such a default to the entries of a list, and a file without it would never equal its object.
#[test]
fn no_field_below_a_list_has_a_default_in_the_schema() {
    for definition in Definition::ALL {
        let written: Value = value(&definition.yaml());
        let schema = &written["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut found = Vec::new();
        defaults_below_lists(schema, "", false, &mut found);
        assert_eq!(found, Vec::<String>::new(), "{definition:?}");
    }
}

#[test]
fn the_description_of_a_field_below_a_list_contains_its_default() {
    let written: Value = value(&Definition::Policy.yaml());
    let spec = &written["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let rule = &spec["properties"]["rules"]["items"]["properties"];
    for (field, default) in [("action", "Default: `Limit`."), ("maxKeys", "Default: `65536`.")] {
        let description = rule[field]["description"].as_str().expect("every field has a description");
        assert!(description.ends_with(default), "{field}: {description}");
    }
}
