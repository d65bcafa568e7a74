//! The structural schema: types, required fields, enumerations, bounds.
//!
//! This module supports only the keywords that Weir's schemas use. Debug builds panic on any other keyword, so that no
//! document passes unchecked.

use serde_json::{Map, Value};

use super::{Fault, Finding, WHOLE, child, quoted};

pub(super) fn check(document: &Value, schema: &Value) -> Vec<Finding> {
    let mut findings = Findings { found: Vec::new(), words: Words::Apiserver };
    walk(document, schema, "", &mut findings);
    findings.found
}

/// Checks the structure, with messages for users.
pub(super) fn review(document: &Value, schema: &Value) -> Vec<Finding> {
    let mut findings = Findings { found: Vec::new(), words: Words::Plain };
    walk(document, schema, "", &mut findings);
    findings.found
}

/// The style of the messages: the apiserver's, or plain words for users.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Words {
    Apiserver,
    Plain,
}

struct Findings {
    found: Vec<Finding>,
    words: Words,
}

impl Findings {
    /// Reports a value that is out of bounds.
    fn invalid(&mut self, path: &str, value: &Value, detail: &str) {
        let fault = match self.words {
            Words::Apiserver => Fault::invalid(path, quoted(value), format_args!("{path} in body {detail}")),
            Words::Plain => Fault::new(path, format!("is {}, but {detail}", quoted(value))),
        };
        self.found.push(Finding::Harmless(fault));
    }

    /// Reports a value that does not have the form that CEL rules need.
    fn blocking(&mut self, path: &str, message: String) {
        self.found.push(Finding::Blocking(Fault::new(path, message)));
    }

    fn wrong_type(&mut self, path: &str, expected: &str, found: &str) {
        self.blocking(path, format!("Invalid value: {found:?}: {path} in body must be of type {expected}: {found:?}"));
    }
}

fn walk(value: &Value, schema: &Value, path: &str, findings: &mut Findings) {
    let Some(keywords) = schema.as_object() else { return };
    let expected = keywords.get("type").and_then(Value::as_str).expect("each part of a structural schema has a type");
    let format = keywords.get("format").and_then(Value::as_str);
    let found = type_of(value);
    let wrong_type = found != expected;
    if wrong_type && findings.words == Words::Plain {
        // A value of the wrong type is one fault: its size and its content are not checked.
        return findings.blocking(path, format!("must be {}, not {}", called(expected), shown(value)));
    }
    if wrong_type && !(value.is_null() && keywords.get("nullable") == Some(&Value::Bool(true))) {
        match (value, format) {
            // As in the apiserver, a message about a number, a boolean or an object names the format, if there is one.
            (Value::Number(_), Some(format)) => findings.wrong_type(path, format, "float64"),
            (Value::Bool(_) | Value::Object(_), Some(format)) => findings.wrong_type(path, format, ""),
            _ => findings.wrong_type(path, expected, found),
        }
    }
    if let Some(supported) = keywords.get("enum").and_then(Value::as_array)
        && !supported.contains(value)
    {
        let names = supported.iter().map(quoted).collect::<Vec<_>>().join(", ");
        let message = match findings.words {
            Words::Apiserver => format!("Unsupported value: {}: supported values: {names}", quoted(value)),
            Words::Plain => format!("must be one of {names}, not {}{}", quoted(value), nearest(value, supported)),
        };
        let fault = if wrong_type { Fault::new(path, message) } else { Fault::unknown_value(path, message) };
        findings.found.push(Finding::Blocking(fault));
    }
    match value {
        Value::String(text) => check_string(text, keywords, path, findings),
        Value::Number(_) => check_number(value, keywords, path, findings),
        Value::Array(items) => check_list(items, keywords, path, findings),
        Value::Object(fields) => check_object(fields, keywords, path, findings),
        Value::Null | Value::Bool(_) => {}
    }
    debug_assert!(keywords.keys().all(|keyword| KEYWORDS.contains(&keyword.as_str())), "unknown keyword in {schema}");
}

const KEYWORDS: [&str; 23] = [
    "additionalProperties", "default", "description", "enum", "format", "items", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "nullable", "properties",
    "required", "title", "type", "x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type",
    "x-kubernetes-validations",
];

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the name of a type, for users.
fn called(kind: &str) -> &str {
    match kind {
        "array" => "a list",
        "object" => "a group of fields",
        "string" => "text",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        other => other,
    }
}

/// Describes a value, for users. A long text is cut.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a group of fields".to_owned(),
        Value::Null => "nothing".to_owned(),
        Value::String(text) if text.chars().count() > 64 => {
            format!("the text {}…", quoted(&Value::from(text.chars().take(64).collect::<String>())))
        }
        Value::String(_) => format!("the text {}", quoted(value)),
        other => other.to_string(),
    }
}

fn nearest(value: &Value, supported: &[Value]) -> String {
    let names = supported.iter().filter_map(Value::as_str);
    let nearest = value.as_str().and_then(|word| super::unknown::nearest(word, names));
    nearest.map(|name| format!(": did you mean {name:?}?")).unwrap_or_default()
}

fn bound(keywords: &Map<String, Value>, keyword: &str) -> Option<u64> {
    keywords.get(keyword).and_then(Value::as_u64)
}

fn check_string(text: &str, keywords: &Map<String, Value>, path: &str, findings: &mut Findings) {
    let length = text.chars().count() as u64;
    if let Some(most) = bound(keywords, "maxLength").filter(|most| length > *most) {
        findings.blocking(path, format!("Too long: may not be more than {most} {}", plural(most, "byte")));
    } else if let Some(least) = bound(keywords, "minLength").filter(|least| length < *least) {
        findings.invalid(path, &Value::from(text), &format!("should be at least {least} chars long"));
    }
}

fn check_number(value: &Value, keywords: &Map<String, Value>, path: &str, findings: &mut Findings) {
    let Some(number) = value.as_f64() else { return };
    if let Some(format) = keywords.get("format").and_then(Value::as_str)
        && !fits(value, format)
    {
        let detail = format_args!("Checked value must be of type integer with format {format} in {path}");
        match findings.words {
            Words::Apiserver => findings.found.push(Finding::Harmless(Fault::invalid(WHOLE, "\"\"", detail))),
            Words::Plain => findings.invalid(path, value, "must be a smaller whole number"),
        }
    }
    let limit = |keyword| keywords.get(keyword).and_then(Value::as_f64);
    if let Some(least) = limit("minimum").filter(|least| number < *least) {
        findings.invalid(path, value, &format!("should be greater than or equal to {least}"));
    }
    if let Some(most) = limit("maximum").filter(|most| number > *most) {
        findings.invalid(path, value, &format!("should be less than or equal to {most}"));
    }
}

fn fits(value: &Value, format: &str) -> bool {
    value.as_i64().is_some_and(|number| format != "int32" || i32::try_from(number).is_ok())
}

fn check_list(items: &[Value], keywords: &Map<String, Value>, path: &str, findings: &mut Findings) {
    if let Some(schema) = keywords.get("items") {
        for (index, item) in items.iter().enumerate() {
            walk(item, schema, &format!("{path}[{index}]"), findings);
        }
    }
    let length = items.len() as u64;
    if let Some(least) = bound(keywords, "minItems").filter(|least| length < *least) {
        findings.invalid(path, &Value::from(length), &format!("should have at least {least} items"));
    }
    too_many(length, bound(keywords, "maxItems"), path, findings);
}

fn check_object(fields: &Map<String, Value>, keywords: &Map<String, Value>, path: &str, findings: &mut Findings) {
    let count = fields.len() as u64;
    if let Some(least) = bound(keywords, "minProperties").filter(|least| count < *least) {
        findings.invalid(path, &Value::from(count), &format!("should have at least {least} properties"));
    }
    too_many(count, bound(keywords, "maxProperties"), path, findings);
    let known = keywords.get("properties").and_then(Value::as_object);
    for (field, value) in fields {
        let schema = known.and_then(|known| known.get(field)).or(keywords.get("additionalProperties"));
        if let Some(schema) = schema {
            walk(value, schema, &child(path, field), findings);
        }
    }
    for field in keywords.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(field) {
            let message = match findings.words {
                Words::Apiserver => "Required value",
                Words::Plain => "is missing and must be set",
            };
            findings.blocking(&child(path, field), message.to_owned());
        }
    }
}

fn too_many(count: u64, most: Option<u64>, path: &str, findings: &mut Findings) {
    if let Some(most) = most.filter(|most| count > *most) {
        findings.blocking(path, format!("Too many: {count}: must have at most {most} {}", plural(most, "item")));
    }
}

fn plural(count: u64, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}
