//! Checks a document, and reports the faults with messages for users.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    Fault, Finding, Kind, POLICY, STORE, WHOLE, cel, child, defaults, metadata, quoted, structure, unique, unknown,
};
use crate::{RateLimitPolicy, RateLimitStore};

/// Returns the policy that a cluster would store for this document, or all its faults with messages for users.
///
/// # Errors
///
/// All faults. An unknown field does not hide other faults: it is checked as the most similar known field.
///
/// # Examples
///
/// ```
/// let document = serde_json::json!({
///     "apiVersion": "weir.dev/v1alpha1",
///     "kind": "RateLimitPolicy",
///     "metadata": {"name": "checkout"},
///     "spec": {
///         "selector": {"matchLabels": {"app": "web"}},
///         "rules": [{"name": "all", "limits": [{"name": "a", "request": 5, "per": "1s"}]}],
///     },
/// });
/// let faults = weir_api::check::review(&document).unwrap_err();
/// assert_eq!(
///     faults[0].to_string(),
///     "spec.rules[0].limits[0].request: unknown field: did you mean \"requests\"?"
/// );
/// assert_eq!(faults.len(), 1);
/// ```
pub fn review(document: &Value) -> Result<RateLimitPolicy, Vec<Fault>> {
    typed(examine(document, &POLICY)?)
}

/// Returns the `RateLimitStore` that a cluster would store for this document, or all its faults with messages for
/// users.
///
/// # Errors
///
/// All faults, as for [`review`].
pub fn review_store(document: &Value) -> Result<RateLimitStore, Vec<Fault>> {
    typed(examine(document, &STORE)?)
}

fn typed<T: DeserializeOwned>(object: Value) -> Result<T, Vec<Fault>> {
    serde_path_to_error::deserialize(object).map_err(|error| {
        let path = error.path().to_string();
        vec![Fault::new(path, error.into_inner().to_string())]
    })
}

/// Checks the document. Returns it with the defaults of the schema.
fn examine(document: &Value, kind: &Kind) -> Result<Value, Vec<Fault>> {
    if !document.is_object() {
        return Err(vec![Fault::new("", "must be a policy, which is a map with apiVersion and kind")]);
    }
    let schema = &kind.schema;
    let mut faults: Vec<Fault> = wrong_kind(document, kind);
    let mut object = document.clone();
    let mut unknown = Vec::new();
    if let Some(fields) = object.as_object_mut() {
        for (name, value) in fields.iter_mut() {
            match name.as_str() {
                "metadata" => rename_in_metadata(value, &mut unknown),
                "apiVersion" | "kind" | "status" => {}
                _ => know(value, schema["properties"].get(name), name, &mut unknown),
            }
        }
        fields.remove("status");
        let known = ["apiVersion", "kind", "metadata", "spec"];
        rename(fields, &known, "", &mut unknown);
    }
    faults.append(&mut unknown);
    defaults::apply(&mut object, schema);
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status"); // only the operator writes the status; this also removes its default
    }

    let mut findings = metadata::check_name(&object);
    findings.extend(structure::review(&object, schema));
    let blocked = findings.iter().any(|finding| matches!(finding, Finding::Blocking(_)));
    let mut later: Vec<Fault> = unique::check(&object, schema);
    if !blocked {
        later.extend(cel::check(&object, kind));
    }
    // If the schema and a CEL rule both refuse a field, keep the message of the rule: it explains how to fix the field.
    let mut earlier: Vec<Fault> = findings.into_iter().map(Finding::into_fault).collect();
    earlier.retain(|fault| !later.iter().any(|later| later.path == fault.path));
    faults.extend(earlier);
    faults.append(&mut later);
    faults.retain(|fault| fault.path != WHOLE);
    for fault in &mut faults {
        // For a list or an object, no value follows the prefix.
        if let Some(rest) = fault.message.strip_prefix("Invalid value: ") {
            let value = at(&object, &fault.path).map(|value| format!("{}: ", quoted(value)));
            let is = if value.is_some_and(|value| rest.starts_with(&value)) { "is " } else { "" };
            fault.message = format!("{is}{rest}");
        } else if let Some(rest) = fault.message.strip_prefix("Required value: ") {
            fault.message = rest.to_owned();
        }
    }
    if faults.is_empty() { Ok(object) } else { Err(faults) }
}

fn wrong_kind(document: &Value, kind: &Kind) -> Vec<Fault> {
    let faults = metadata::check_kind(document, kind).err().unwrap_or_default();
    let plain = |fault: Fault| {
        let must = fault.message.rsplit(": ").next().unwrap_or_default().to_owned();
        let message = match document.get(&fault.path) {
            None => format!("is missing: {must}"),
            Some(found) => format!("{must}, not {}", quoted(found)),
        };
        Fault { message, ..fault }
    };
    faults.into_iter().map(plain).collect()
}

/// Returns the value at a path.
fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split(['.', '[']).try_fold(object, |value, step| match step.strip_suffix(']') {
        Some(index) => value.get(index.parse::<usize>().ok()?),
        None => value.get(step),
    })
}

fn rename_in_metadata(value: &mut Value, unknown: &mut Vec<Fault>) {
    if let Value::Object(fields) = value {
        rename(fields, &unknown::METADATA, "metadata", unknown);
    }
}

/// Reports fields that the schema does not have, and renames them to the most similar known fields.
fn know(value: &mut Value, schema: Option<&Value>, path: &str, unknown: &mut Vec<Fault>) {
    match (value, schema) {
        // If the schema requires no object at this path, an object is one fault, instead of one fault for each field.
        (Value::Object(fields), Some(schema)) if schema.get("type").is_none_or(|kind| kind == "object") => {
            if schema.get("additionalProperties").is_none() {
                let known = schema.get("properties").and_then(Value::as_object);
                let names: Vec<&str> = known.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
                rename(fields, &names, path, unknown);
            }
            for (name, value) in fields {
                let known = schema.get("properties").and_then(|known| known.get(name));
                know(value, known.or(schema.get("additionalProperties")), &child(path, name), unknown);
            }
        }
        (Value::Array(items), Some(schema)) => {
            for (index, item) in items.iter_mut().enumerate() {
                know(item, schema.get("items"), &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

fn rename(fields: &mut Map<String, Value>, known: &[&str], path: &str, unknown: &mut Vec<Fault>) {
    let strange: Vec<String> = fields.keys().filter(|name| !known.contains(&name.as_str())).cloned().collect();
    for name in strange {
        let value = fields.remove(&name).unwrap_or_default();
        let missing = known.iter().copied().filter(|known| !fields.contains_key(*known));
        let meant = unknown::nearest(&name, missing).or_else(|| unknown::nearest(&name, known.iter().copied()));
        let message = match &meant {
            Some(meant) => format!("unknown field: did you mean {meant:?}?"),
            None if known.is_empty() => "unknown field: no fields are allowed here".to_owned(),
            None => format!("unknown field: the known fields are {}", known.join(", ")),
        };
        if let Some(meant) = meant.filter(|meant| !fields.contains_key(meant)) {
            fields.insert(meant, value);
        }
        unknown.push(Fault::unknown_field(child(path, &name), message));
    }
}
