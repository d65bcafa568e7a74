//! Checks the kind, the version and the name, which the apiserver checks outside of the schema.

use serde_json::Value;

use super::{Fault, Finding, Kind, quoted, structure::shown};

const API_VERSION: &str = "weir.dev/v1alpha1";
const LONGEST_NAME: usize = 253;
const NAME_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Checks version and kind. The apiserver has no such check, because it routes a document by its version and kind.
pub(super) fn check_kind(document: &Value, kind: &Kind) -> Result<(), Vec<Fault>> {
    let faults: Vec<_> = [("apiVersion", API_VERSION), ("kind", kind.name)]
        .into_iter()
        .filter(|(field, expected)| document.get(*field).and_then(Value::as_str) != Some(*expected))
        .map(|(field, expected)| {
            let found = document.get(field).cloned().unwrap_or_default();
            Fault::invalid(field, found, format_args!("must be \"{expected}\" for a {}", kind.words))
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

pub(super) fn check_name(document: &Value) -> Vec<Finding> {
    let metadata = |field| document.pointer(field).and_then(Value::as_str).unwrap_or_default();
    let path = "metadata.name";
    let wrong_type = |field: &str| {
        let value =
            document.pointer(&format!("/metadata/{field}")).filter(|value| !value.is_null() && !value.is_string())?;
        let message = format!("must be text, not {}", shown(value));
        Some(Finding::Blocking(Fault::new(format!("metadata.{field}"), message)))
    };
    let wrong_types: Vec<_> = ["name", "generateName"].into_iter().filter_map(wrong_type).collect();
    if !wrong_types.is_empty() {
        return wrong_types;
    }
    match metadata("/metadata/name") {
        "" if metadata("/metadata/generateName").is_empty() => {
            vec![Finding::Blocking(Fault::new(path, "Required value: name or generateName is required"))]
        }
        "" => Vec::new(),
        name => {
            let too_long = format!("must be no more than {LONGEST_NAME} bytes");
            let details = [
                (name.len() > LONGEST_NAME).then_some(too_long.as_str()),
                (!name.split('.').all(is_label)).then_some(NAME_RULE),
            ];
            let name = quoted(&Value::from(name));
            details.into_iter().flatten().map(|detail| Finding::Harmless(Fault::invalid(path, &name, detail))).collect()
        }
    }
}

fn is_label(label: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = label.as_bytes();
    bytes.iter().all(|byte| alphanumeric(*byte) || *byte == b'-')
        && bytes.first().is_some_and(|byte| alphanumeric(*byte))
        && bytes.last().is_some_and(|byte| alphanumeric(*byte))
}
