//! Fuzzes the status files that an operator of standalone mode reads at its start. The operator must read back its own
//! files. Any other file is ignored, or contains a policy that a cluster would accept.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};
use weir_api::{RateLimitPolicySpec, check};
use weir_fuzz::{Choices, Target, json::change};

use super::kept;

/// Words that people and other programs could write into a status file.
const WORDS: &[&str] = &[
    "", "a", "shop", "checkout.yaml", "../a.yaml", "/etc/passwd", "RateLimitPolicy", "weir.dev/v1alpha1", "{}", "[]",
    "null", "{\"rules\": []}", "{\"selector\": {}, \"rules\": [{}]}", "{\"rules\": 1", "0", "-1", "1e3", "~", "true",
    "&a", "*a", "<<", "!!binary", "---", "...", "\u{e4}", "\0", "a\nb", ": ", "#",
];

/// The generation and the spec of each policy, by file.
type Known = BTreeMap<String, BTreeMap<(String, String), (i64, Value)>>;

#[test]
fn any_status_file_is_ignored_or_holds_what_an_operator_wrote() {
    let directory = tempfile::tempdir().unwrap();
    Target::new("kept").run(200, |bytes| {
        let mut choices = Choices(bytes);
        while !choices.is_over() {
            states(&mut choices, directory.path())?;
        }
        Ok(())
    });
}

fn states(choices: &mut Choices<'_>, directory: &Path) -> Result<(), String> {
    let mut expected = Known::new();
    let (mut text, mut is_whole) = (String::new(), true);
    for number in 0..choices.below(4) {
        let file = *choices.one(&["a.yaml", "a.yml", "a.json"]);
        let (namespace, name) = (*choices.one(&["shop", "default"]), format!("p{number}"));
        let (generation, spec) = (1 + i64::from(choices.byte()), spec(choices));
        let mut document = document(file, namespace, &name, generation, &spec);
        if choices.rarely(4) {
            is_whole = false;
            change(&mut document, WORDS, choices);
        }
        expected.entry(file.to_owned()).or_default().insert((namespace.to_owned(), name), (generation, spec));
        text += &format!("---\n{}", serde_yaml::to_string(&document).map_err(|error| error.to_string())?);
    }
    let mut bytes = text.into_bytes();
    if choices.rarely(4) && !bytes.is_empty() {
        is_whole = false;
        let at = choices.below(bytes.len());
        match choices.below(4) {
            0 => bytes.truncate(at),
            1 => bytes[at] = choices.byte(),
            2 => drop(bytes.splice(at..at, choices.text(WORDS, 4).bytes())),
            _ => drop(bytes.drain(at..(at + choices.below(40)).min(bytes.len()))),
        }
    }
    fs::write(directory.join("a.status.yaml"), &bytes).map_err(|error| error.to_string())?;
    let shown = String::from_utf8_lossy(&bytes);
    let found = kept(directory).map_err(|error| format!("{error}: {shown}"))?;
    let mut read = Known::new();
    for (file, content) in found {
        for policy in content.policies {
            // No operator enforces a spec with unknown fields or values.
            let Ok(spec) = &policy.spec else { continue };
            let spec = serde_json::to_value(&**spec).map_err(|error| error.to_string())?;
            valid(&spec).map_err(|wrong| format!("{wrong}: {shown}"))?;
            if policy.generation < 1 {
                return Err(format!("{policy:?} came from {shown}"));
            }
            let key = (policy.key.namespace.to_string(), policy.key.name.to_string());
            if read.entry(file.to_string()).or_default().insert(key, (policy.generation, spec)).is_some() {
                return Err(format!("a policy was read twice from {shown}"));
            }
        }
    }
    if is_whole && read != expected {
        return Err(format!("{shown}\ncontains {read:?}\nand should contain {expected:?}"));
    }
    Ok(())
}

fn spec(choices: &mut Choices<'_>) -> Value {
    let requests = 1 + i64::from(choices.byte());
    let limit = json!({"name": "a", "requests": requests, "per": *choices.one(&["1s", "1m", "24h"])});
    let mut rule = json!({"name": "all", "limits": [limit]});
    if choices.rarely(2) {
        rule["match"] = json!([{"paths": [*choices.one(&["/**", "/api/**", "/a:b", "/\u{e4}"])]}]);
    }
    let spec =
        json!({"selector": {"matchLabels": {"app": *choices.one(&["web", "yes", "1", "0x1"])}}, "rules": [rule]});
    // The spec contains the defaults, as in a status.
    let spec: RateLimitPolicySpec = serde_json::from_value(spec).unwrap();
    serde_json::to_value(&spec).unwrap()
}

fn document(file: &str, namespace: &str, name: &str, generation: i64, spec: &Value) -> Value {
    json!({
        "apiVersion": "weir.dev/v1alpha1",
        "kind": "RateLimitPolicy",
        "metadata": {"name": name, "namespace": namespace, "annotations": {"weir.dev/file": file}},
        "status": {"lastKnownGood": {"generation": generation, "spec": spec.to_string()}},
    })
}

/// Checks that a cluster would accept a policy with this spec.
fn valid(spec: &Value) -> Result<(), String> {
    let document =
        json!({"apiVersion": "weir.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": {"name": "p"}, "spec": spec});
    check::review(&document).map(drop).map_err(|faults| format!("{faults:?} in {spec}"))
}
