//! Checks that values.yaml of a chart explains each value, and that the schema contains exactly the same values.
//!
//! This module reads values.yaml as text, because a YAML parser drops comments.

use anyhow::Context as _;
use serde_json::Value;

use super::Violation;
use crate::workspace::Workspace;

/// The charts.
pub(crate) const CHARTS: [&str; 2] = ["charts/weir-crds", "charts/weir"];

/// Values that have fields of Kubernetes. These fields need no explanation.
const KUBERNETES: [&str; 1] = ["resources"];

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for chart in CHARTS {
        let read = |file: &str| {
            let path = workspace.root().join(chart).join(file);
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        let schema =
            serde_json::from_str(&read("values.schema.json")?).with_context(|| format!("{chart}: the schema"))?;
        violations.extend(check_values(&format!("{chart}/values.yaml"), &read("values.yaml")?, &schema));
    }
    Ok(violations)
}

/// A value: the names of its path, and its line.
struct Line {
    number: usize,
    path: Vec<String>,
    explained: bool,
}

fn check_values(place: &str, text: &str, schema: &Value) -> Vec<Violation> {
    let lines = read(text);
    let mut violations = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let here = || format!("{place}:{}", line.number);
        let name = line.path.join(".");
        // A group of values needs no explanation, because each value in it has one.
        let is_folder = lines.get(index + 1).is_some_and(|next| next.path.len() > line.path.len());
        let is_kubernetes = line.path.iter().rev().skip(1).any(|part| KUBERNETES.contains(&part.as_str()));
        if !line.explained && !is_folder && !is_kubernetes {
            violations.push(Violation::new(here(), format!("{name} is not explained"), "write a comment above it"));
        }
        if property(schema, schema, &line.path).is_none() {
            let fix = "add it to values.schema.json, which refuses unknown values";
            violations.push(Violation::new(here(), format!("{name} is not in the schema"), fix));
        }
    }
    for path in properties(schema, schema, &[]) {
        if !lines.iter().any(|line| line.path == path) {
            let fault = format!("{} is in the schema, but has no default", path.join("."));
            violations.push(Violation::new(place, fault, "add its default, and a comment about its purpose"));
        }
    }
    violations
}

/// Reads the values of the file, in order.
fn read(text: &str) -> Vec<Line> {
    let (mut lines, mut way, mut explained) = (Vec::new(), Vec::<(usize, String)>::new(), false);
    for (index, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            explained = line.starts_with('#');
        } else if let Some((name, _)) = line.split_once(':') {
            way.retain(|(depth, _)| *depth < indent);
            way.push((indent, name.to_owned()));
            let path = way.iter().map(|(_, name)| name.clone()).collect();
            lines.push(Line { number: index + 1, path, explained });
            explained = false;
        }
    }
    lines
}

/// Follows the reference if the schema is one.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema["$ref"].as_str().and_then(|reference| root.pointer(reference.strip_prefix('#')?));
    reference.unwrap_or(schema)
}

/// Returns the schema of a value. If the schema allows any name, or names of a pattern, it returns the schema for such
/// names.
fn property<'a>(root: &'a Value, schema: &'a Value, path: &[String]) -> Option<&'a Value> {
    let schema = resolved(root, schema);
    let Some((name, rest)) = path.split_first() else { return Some(schema) };
    let any = schema.get("additionalProperties").filter(|any| any.is_object());
    let some = schema["patternProperties"].as_object().and_then(|patterns| patterns.values().next());
    property(root, schema["properties"].get(name).or(any).or(some)?, rest)
}

/// Returns true if the schema of a chart contains the value. The name is written as for `--set`.
pub(crate) fn knows(schema: &Value, name: &str) -> bool {
    let path: Vec<String> = name.split('.').map(str::to_owned).collect();
    property(schema, schema, &path).is_some()
}

/// Lists all values in the schema, without the fields that Kubernetes defines.
fn properties(root: &Value, schema: &Value, path: &[String]) -> Vec<Vec<String>> {
    let schema = resolved(root, schema);
    let mut found = Vec::new();
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path = [path, std::slice::from_ref(name)].concat();
        // Helm adds `global`, and a chart that contains this one can add `enabled`.
        if name != "global" && !(path.len() == 1 && name == "enabled") {
            let is_leaf = KUBERNETES.contains(&name.as_str()) || name == "affinity";
            found.extend(if is_leaf { Vec::new() } else { properties(root, inner, &path) });
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let schema = json!({
            "properties": {
                "global": {"type": "object"},
                "enabled": {"type": "boolean"},
                "a": {"type": "string"},
                "image": {"$ref": "#/definitions/image"},
                "resources": {"properties": {"limits": {"additionalProperties": {"type": "string"}}}},
                "labels": {"additionalProperties": {"type": "string"}},
            },
            "definitions": {"image": {"properties": {"tag": {"type": "string"}}}},
        });
        check_values("v", text, &schema).into_iter().map(|it| format!("{}: {}", it.place, it.fault)).collect()
    }

    const GOOD: &str = "# A.\na: x\nimage:\n  # Tag.\n  tag: y\n# What it may use.\nresources:\n  limits:\n    memory: 1\n# Labels.\nlabels:\n  # One.\n  b: c\n";

    #[test]
    fn values_that_are_explained_and_known_pass() {
        assert_eq!(faults(GOOD), [""; 0]);
    }

    #[test]
    fn each_rule_can_be_broken() {
        for (from, to, expected) in [
            ("# A.\n", "", "v:1: a is not explained"),
            ("# A.\na", "# A.\n\na", "v:3: a is not explained"),
            ("  # Tag.\n", "", "v:4: image.tag is not explained"),
            ("# A.\n", "# B.\nb: 1\n# A.\n", "v:2: b is not in the schema"),
            ("# A.\na: x\n", "", "v: a is in the schema, but has no default"),
            ("image:\n  # Tag.\n  tag: y\n", "# I.\nimage: {}\n", "v: image.tag is in the schema, but has no default"),
        ] {
            assert!(GOOD.contains(from));
            assert_eq!(faults(&GOOD.replacen(from, to, 1)), [expected]);
        }
    }
}
