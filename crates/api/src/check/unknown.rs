//! Checks for fields that the schema does not have. kubectl requests that the apiserver refuses them instead of
//! dropping them.

use serde_json::Value;

use super::{Fault, child};

/// The fields of `ObjectMeta`. The schema of a definition does not contain them, because the apiserver checks them.
pub(super) const METADATA: [&str; 15] = [
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences", "resourceVersion",
    "selfLink", "uid",
];

pub(super) fn check(document: &Value, schema: &Value) -> Vec<Fault> {
    let mut in_metadata = Vec::new();
    if let Some(metadata) = document.get("metadata").and_then(Value::as_object) {
        in_metadata
            .extend(metadata.keys().filter(|key| !METADATA.contains(&key.as_str())).map(|key| child("metadata", key)));
    }
    let mut below = Vec::new();
    for (field, value) in document.as_object().into_iter().flatten() {
        match schema["properties"].get(field) {
            Some(schema) => walk(value, Some(schema), field, &mut below),
            None if matches!(field.as_str(), "apiVersion" | "kind" | "metadata") => {}
            None => below.push(field.clone()),
        }
    }
    in_metadata.sort();
    below.sort();
    in_metadata
        .into_iter()
        .chain(below)
        .map(|path| {
            let message = format!("unknown field \"{path}\"");
            Fault::unknown_field(path, message)
        })
        .collect()
}

fn walk(value: &Value, schema: Option<&Value>, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let path = child(path, field);
                let schema = schema.and_then(|schema| {
                    schema.get("properties").and_then(|known| known.get(field)).or(schema.get("additionalProperties"))
                });
                match schema {
                    Some(schema) => walk(value, Some(schema), &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        Value::Array(items) => {
            let schema = schema.and_then(|schema| schema.get("items"));
            for (index, item) in items.iter().enumerate() {
                walk(item, schema, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Returns the most similar known word, if one is similar enough.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let plain = |word: &str| word.to_lowercase().replace(['_', '-'], "");
    let word = plain(word);
    let distance = |known: &&str| strsim::damerau_levenshtein(&word, &plain(known));
    let best = known.min_by_key(distance)?;
    (distance(&best) <= (best.len() / 3).max(1)).then(|| best.to_owned())
}
