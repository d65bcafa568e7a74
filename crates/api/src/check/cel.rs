//! The CEL rules of the fields.

use kube::core::cel::{CompiledSchema, ErrorKind, ValidationError, ValidationErrors, Validator};
use serde_json::Value;

use super::{Fault, Kind, quoted};

pub(super) fn check(document: &Value, kind: &Kind) -> Vec<Fault> {
    faults(failures(&kind.rules, &kind.schema, document), document, &kind.schema)
}

fn failures(rules: &CompiledSchema, schema: &Value, document: &Value) -> Vec<ValidationError> {
    let failures = Validator::new().validate_compiled(rules, document, None);
    let mut failures = failures.err().map(ValidationErrors::into_vec).unwrap_or_default();
    // The validator iterates over the fields in a hash map, so the order of its failures is random.
    failures.sort_by_cached_key(|failure| place(failure, schema));
    failures
}

fn faults(failures: Vec<ValidationError>, document: &Value, schema: &Value) -> Vec<Fault> {
    failures.into_iter().map(|failure| fault(failure, document, schema)).collect()
}

/// One step on the path from the root of the document to a rule. Steps are ordered as in the apiserver: the rules of an
/// object precede the rules of its fields, and fields have the schema's order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Rule(usize),
    Field(usize),
    Item(usize),
}

fn place(failure: &ValidationError, mut schema: &Value) -> Vec<Step> {
    let mut place = Vec::new();
    let mut rest = failure.field_path.as_str();
    loop {
        // A rule can report the path of a field below the object that has the rule.
        let own = |rule: &Value| {
            let below = rule["fieldPath"].as_str().unwrap_or_default();
            rule["rule"] == failure.rule.as_str() && below.trim_start_matches('.') == rest.trim_start_matches('.')
        };
        let rules = schema["x-kubernetes-validations"].as_array();
        if let Some(index) = rules.and_then(|rules| rules.iter().position(own)) {
            place.push(Step::Rule(index));
            return place;
        }
        let item = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        if let Some((Ok(index), after)) = item.map(|(index, after)| (index.parse(), after)) {
            place.push(Step::Item(index));
            (schema, rest) = (&schema["items"], after);
            continue;
        }
        let from = rest.trim_start_matches('.');
        let (name, after) = from.split_at(from.find(['.', '[']).unwrap_or(from.len()));
        let fields = schema["properties"].as_object();
        let Some(index) = fields.and_then(|fields| fields.keys().position(|field| field == name)) else {
            return place;
        };
        place.push(Step::Field(index));
        (schema, rest) = (&schema["properties"][name], after);
    }
}

fn fault(failure: ValidationError, document: &Value, schema: &Value) -> Fault {
    debug_assert_eq!(failure.kind, ErrorKind::ValidationFailure, "a CEL rule cannot be evaluated: {failure:?}");
    let path = failure.field_path.clone();
    match subject(&failure, document, schema) {
        Some(value) => Fault::invalid(path, quoted(value), failure.message),
        None => Fault::new(path, format!("Invalid value: {}", failure.message)),
    }
}

/// Returns the value that the apiserver quotes: the value that the rule checks, unless it is an object or a list. A
/// rule that reports the path of a nested field checks an object.
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use kube::core::cel::compile_schema;

    use super::{super::POLICY, *};

    /// Compares failures with those of rules that are compiled for each document, which run in the schema's order.
    #[test]
    fn rules_that_were_compiled_once_find_the_same_in_the_same_order() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies/bad");
        // Each compilation has another order of fields.
        let rules = [(); 4].map(|()| compile_schema(&POLICY.schema));
        let (mut documents, mut several) = (0, 0);
        for entry in fs::read_dir(root).expect("the policies") {
            let path = entry.expect("a file").path();
            let document: Value = serde_yaml::from_str(&fs::read_to_string(&path).expect("text")).expect("YAML");
            let one_by_one = Validator::new().validate(&POLICY.schema, &document, None);
            let expected = one_by_one.err().map(ValidationErrors::into_vec).unwrap_or_default();
            documents += 1;
            several += usize::from(expected.len() > 1);
            for rules in &rules {
                assert_eq!(failures(rules, &POLICY.schema, &document), expected, "{}", path.display());
            }
            for failure in &expected {
                assert!(
                    matches!(place(failure, &POLICY.schema).last(), Some(Step::Rule(_))),
                    "no rule of the schema is found for {failure:?}"
                );
            }
        }
        assert!(documents > 50 && several > 10, "{documents} documents, {several} with several failures");
    }
}
