//! Kind, version and name: what the apiserver looks at outside of the schema.

use serde_json::Value;

use super::Fault;

const API_VERSION: &str = "weir.dev/v1alpha1";
const KIND: &str = "RateLimitPolicy";
const LONGEST_NAME: usize = 253;
const NAME_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// The one check that has no model in the apiserver, which would take the document for another resource.
pub(super) fn check_kind(document: &Value) -> Result<(), Vec<Fault>> {
    let faults: Vec<_> = [("apiVersion", API_VERSION), ("kind", KIND)]
        .into_iter()
        .filter(|(field, expected)| document.get(*field).and_then(Value::as_str) != Some(*expected))
        .map(|(field, expected)| {
            let found = document.get(field).cloned().unwrap_or_default();
            Fault::invalid(field, found, format_args!("must be \"{expected}\" for a rate limit policy"))
        })
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

pub(super) fn check_name(document: &Value) -> Vec<Fault> {
    let metadata = |field| document.pointer(field).and_then(Value::as_str).unwrap_or_default();
    let path = "metadata.name";
    match metadata("/metadata/name") {
        "" if metadata("/metadata/generateName").is_empty() => {
            vec![Fault { path: path.into(), message: "Required value: name or generateName is required".into() }]
        }
        "" => Vec::new(),
        name => {
            let quoted = Value::from(name);
            let mut faults = Vec::new();
            if name.len() > LONGEST_NAME {
                faults.push(Fault::invalid(path, &quoted, format_args!("must be no more than {LONGEST_NAME} bytes")));
            }
            if !name.split('.').all(is_label) {
                faults.push(Fault::invalid(path, &quoted, NAME_RULE));
            }
            faults
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
