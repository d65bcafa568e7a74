//! Finds every unknown or misplaced field of a snapshot.
//!
//! A parser stops at the first fault, but the author of a snapshot needs all of them. So a snapshot that did not parse
//! is split: each policy, rule and entry of a rule is parsed alone, and each reports at most one fault.

use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_wire::{Fault, Limit, Match, Override, PolicyRules, Rule, Snapshot};

/// The faults of a body that is JSON (`snapshot`) but not a [`Snapshot`]: at least one.
pub(super) fn faults(body: &[u8], mut snapshot: Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (path, mut policy) in take(&mut snapshot, "policies", "") {
        for (path, mut rule) in take(&mut policy, "rules", &path) {
            entries::<Match>(&mut rule, "match", &path, &mut faults);
            entries::<Limit>(&mut rule, "limits", &path, &mut faults);
            entries::<Override>(&mut rule, "overrides", &path, &mut faults);
            check::<Rule>(rule, &path, &mut faults);
        }
        check::<PolicyRules>(policy, &path, &mut faults);
    }
    check::<Snapshot>(snapshot, "", &mut faults);
    // A `Value` does not show a duplicate field, so parse the text as well.
    if faults.is_empty() {
        let json = &mut serde_json::Deserializer::from_slice(body);
        if let Err(error) = serde_path_to_error::deserialize::<_, Snapshot>(json) {
            faults.push(Fault { path: error.path().to_string(), message: error.into_inner().to_string() });
        }
    }
    faults
}

fn entries<T: DeserializeOwned>(rule: &mut Value, list: &str, path: &str, faults: &mut Vec<Fault>) {
    for (path, entry) in take(rule, list, path) {
        check::<T>(entry, &path, faults);
    }
}

/// Empties a list and returns its entries with their paths. A value that is not a list remains in the object, so that
/// the parser reports it.
fn take(object: &mut Value, list: &str, path: &str) -> Vec<(String, Value)> {
    let Some(Value::Array(entries)) = object.get_mut(list) else { return Vec::new() };
    let separator = if path.is_empty() { "" } else { "." };
    let entries = std::mem::take(entries).into_iter().enumerate();
    entries.map(|(index, entry)| (format!("{path}{separator}{list}[{index}]"), entry)).collect()
}

fn check<T: DeserializeOwned>(value: Value, path: &str, faults: &mut Vec<Fault>) {
    if let Err(error) = serde_path_to_error::deserialize::<_, T>(value) {
        let within = error.path().to_string();
        let path = match (path, within.as_str()) {
            ("", _) => within,
            (_, ".") => path.to_owned(),
            _ => format!("{path}.{within}"),
        };
        faults.push(Fault { path, message: error.into_inner().to_string() });
    }
}
