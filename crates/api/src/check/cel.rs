//! The CEL rules beside the fields.

use kube::core::cel::{ErrorKind, ValidationError, Validator};
use serde_json::Value;

use super::{Fault, quoted};

pub(super) fn check(document: &Value, schema: &Value) -> Vec<Fault> {
    let failures = Validator::new().validate(schema, document, None).err().into_iter().flatten();
    failures.map(|failure| fault(failure, document, schema)).collect()
}

fn fault(failure: ValidationError, document: &Value, schema: &Value) -> Fault {
    debug_assert_eq!(failure.kind, ErrorKind::ValidationFailure, "a rule of ours does not run: {failure:?}");
    let path = failure.field_path.clone();
    match subject(&failure, document, schema) {
        Some(value) => Fault::invalid(path, quoted(value), failure.message),
        None => Fault { path, message: format!("Invalid value: {}", failure.message) },
    }
}

/// The value that the rule is about, if the apiserver quotes it: objects and lists it does not. A rule that gives the
/// path of a field below its own is about an object.
fn subject<'a>(failure: &ValidationError, document: &'a Value, schema: &Value) -> Option<&'a Value> {
    let (mut value, mut schema) = (document, schema);
    for step in failure.field_path.split(['.', '[']) {
        (value, schema) = match step.strip_suffix(']') {
            Some(index) => (value.get(index.parse::<usize>().ok()?)?, schema.get("items")?),
            None => (value.get(step)?, schema.get("properties")?.get(step)?),
        };
    }
    let rules = schema.get("x-kubernetes-validations")?.as_array()?;
    let own = rules.iter().any(|rule| rule["rule"] == failure.rule.as_str() && rule.get("fieldPath").is_none());
    (own && !value.is_object() && !value.is_array()).then_some(value)
}
