//! Writes `docs/api.md` and `docs/api-store.md`: the pages that explain every field of a kind.
//!
//! Types, bounds, defaults and messages come from the schema of the CRD, without additions.

use std::fmt::Write as _;

use anyhow::Context as _;
use serde_yaml::Value;

/// The first lines of the page of a kind with this short name.
fn head(kind: &str, short: &str) -> String {
    format!(
        "<!-- Written by `cargo xtask crds` from crates/api: edit the types there, not this file. -->

# {kind}, `weir.dev/v1alpha1`

This page lists every field. `kubectl explain {short}.spec --recursive` shows the same fields. If a value violates the rule of a field, the
apiserver refuses it at `kubectl apply` with the message on this page.
"
    )
}

/// Creates the page for a definition.
pub(crate) fn page(crd: &str) -> anyhow::Result<String> {
    let crd: Value = serde_yaml::from_str(crd).context("the definition is not YAML")?;
    let schema = crd.get("spec").and_then(|spec| spec.get("versions")?.get(0)?.get("schema")?.get("openAPIV3Schema"));
    let schema = schema.context("the definition has no schema")?;
    let names = crd.get("spec").and_then(|spec| spec.get("names")).context("the definition has no names")?;
    let kind = names.get("kind").and_then(Value::as_str).context("the definition has no kind")?;
    let short =
        names.get("shortNames").and_then(|names| names.get(0)?.as_str()).context("the definition has no short name")?;
    let mut page = head(kind, short);
    for part in ["spec", "status"] {
        let schema = schema.get("properties").and_then(|all| all.get(part)).context("the schema lacks a part")?;
        section(&mut page, part, schema);
    }
    Ok(page)
}

/// Writes the fields of an object, and then the fields of the objects in it.
fn section(page: &mut String, path: &str, schema: &Value) {
    let Some(fields) = schema.get("properties").and_then(Value::as_mapping) else { return };
    let _ = writeln!(page, "\n## `{path}`\n");
    if let Some(text) = description(schema) {
        let _ = writeln!(page, "{text}\n");
    }
    let _ = writeln!(page, "| field | type | |\n|---|---|---|");
    let required: Vec<_> =
        schema.get("required").and_then(Value::as_sequence).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut inner = Vec::new();
    for (name, field) in fields {
        let name = name.as_str().unwrap_or_default();
        let (marks, item) = unwrapped(field);
        let mut notes: Vec<String> = description(field).into_iter().collect();
        if required.contains(&name) {
            notes.push("Required.".to_owned());
        }
        if let Some(default) = field.get("default") {
            notes.push(format!("Default: {}.", code(default)));
        }
        // The messages of an object are at the end of its section.
        let own = |schema: &Value| if schema.get("properties").is_some() { Vec::new() } else { messages(schema) };
        notes.extend(own(field));
        if !std::ptr::eq(field, item) {
            notes.extend(own(item));
        }
        let _ = writeln!(page, "| `{name}` | {} | {} |", kind(field), cell(&notes.join(" ")));
        inner.push((format!("{path}.{name}{marks}"), item));
    }
    let whole = messages(schema);
    if !whole.is_empty() {
        let _ = writeln!(page, "\nTogether:\n");
        for message in whole {
            let _ = writeln!(page, "- {message}");
        }
    }
    for (path, schema) in inner {
        section(page, &path, schema);
    }
}

/// Returns the innermost type of a list or a map, and the marks of its path.
fn unwrapped(schema: &Value) -> (String, &Value) {
    let mut marks = String::new();
    let mut schema = schema;
    loop {
        if let Some(items) = schema.get("items") {
            marks.push_str("[]");
            schema = items;
        } else if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_mapping()) {
            marks.push_str("{}");
            schema = values;
        } else {
            return (marks, schema);
        }
    }
}

/// Returns the type with its bounds.
fn kind(schema: &Value) -> String {
    let text = |name: &str| schema.get(name).and_then(Value::as_str);
    if let Some(words) = schema.get("enum").and_then(Value::as_sequence) {
        return words.iter().map(code).collect::<Vec<_>>().join(" or ");
    }
    if let Some(items) = schema.get("items") {
        return format!("list of {}{}", kind(items), bounds(schema, "minItems", "maxItems", " entries"));
    }
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_mapping()) {
        return format!(
            "map of names to {}{}",
            kind(values),
            bounds(schema, "minProperties", "maxProperties", " entries")
        );
    }
    if schema.get("x-kubernetes-int-or-string").is_some() {
        return "integer or string".to_owned();
    }
    match text("type") {
        Some("string") if text("format") == Some("date-time") => "time".to_owned(),
        Some("string") => format!("string{}", bounds(schema, "minLength", "maxLength", " characters")),
        Some("integer") => format!("integer{}", bounds(schema, "minimum", "maximum", "")),
        Some(other) => other.to_owned(),
        None => "any".to_owned(),
    }
}

fn bounds(schema: &Value, least: &str, most: &str, unit: &str) -> String {
    let number = |name: &str| schema.get(name).and_then(Value::as_f64);
    match (number(least).filter(|least| *least != 0.0 || unit.is_empty()), number(most)) {
        (None, None) => String::new(),
        (Some(least), None) => format!(", at least {least}{unit}"),
        (None, Some(most)) => format!(", at most {most}{unit}"),
        (Some(least), Some(most)) => format!(", {least} to {most}{unit}"),
    }
}

/// Returns the messages of a schema. Two rules can have one message, which the page shows once.
fn messages(schema: &Value) -> Vec<String> {
    let rules = schema.get("x-kubernetes-validations").and_then(Value::as_sequence);
    let messages = rules.into_iter().flatten().filter_map(|rule| rule.get("message")?.as_str());
    let mut messages: Vec<_> = messages.map(|message| format!("*{}*.", escaped(message))).collect();
    messages.dedup();
    messages
}

fn description(schema: &Value) -> Option<String> {
    Some(schema.get("description")?.as_str()?.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn code(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{text}`"),
        other => format!("`{}`", serde_json::to_string(other).unwrap_or_default()),
    }
}

/// Escapes the characters of a message that Markdown would interpret.
fn escaped(text: &str) -> String {
    text.replace('*', "\\*").replace('<', "&lt;")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRD: &str = r"
spec:
  names: {kind: Thing, shortNames: [thg]}
  versions:
  - schema:
      openAPIV3Schema:
        properties:
          spec:
            description: |-
              What is
              wanted.
            required: [rules]
            x-kubernetes-validations: [{message: 'not both * and |', rule: x}]
            properties:
              mode: {type: string, enum: [A, B], default: A}
              rules:
                description: All of them.
                type: array
                minItems: 1
                maxItems: 8
                items:
                  type: object
                  properties:
                    n: {type: integer, minimum: 1, maximum: 5, x-kubernetes-validations: [{message: a|b, rule: x}, {message: a|b, rule: y}]}
          status:
            properties:
              at: {type: string, format: date-time}
";

    #[test]
    fn a_page_says_what_the_schema_says() {
        let page = page(CRD).expect("a schema");
        let body = page.strip_prefix(&head("Thing", "thg")).expect("the head comes first");
        assert_eq!(
            body,
            r"
## `spec`

What is wanted.

| field | type | |
|---|---|---|
| `mode` | `A` or `B` | Default: `A`. |
| `rules` | list of object, 1 to 8 entries | All of them. Required. |

Together:

- *not both \* and |*.

## `spec.rules[]`

| field | type | |
|---|---|---|
| `n` | integer, 1 to 5 | *a\|b*. |

## `status`

| field | type | |
|---|---|---|
| `at` | time |  |
"
        );
    }

    #[test]
    fn a_definition_without_a_schema_is_an_error() {
        assert!(page("spec: {}").is_err());
    }
}
