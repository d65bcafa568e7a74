//! Checks that the fields in a command are fields of a policy, with the schema of the CRD.

use anyhow::Context as _;
use serde_json::Value;

pub(super) struct Fields(Value);

impl Fields {
    pub(super) fn new() -> anyhow::Result<Self> {
        let definition: Value =
            serde_yaml::from_str(&weir_api::Definition::Policy.yaml()).context("the definition is not YAML")?;
        let schema =
            definition.pointer("/spec/versions/0/schema/openAPIV3Schema").context("the definition has no schema")?;
        Ok(Self(schema.clone()))
    }

    /// Finds the first unknown name in a path such as `.spec.rules[0].limits`.
    pub(super) fn path(&self, path: &str) -> Result<(), String> {
        let mut schema = &self.0;
        let parts = path.split(['.', '[', ']']).filter(|part| !part.is_empty());
        // Indices and filters select items of a list.
        for part in
            parts.filter(|part| !part.starts_with(|first: char| first.is_ascii_digit() || "*?@".contains(first)))
        {
            schema = field(schema, part).ok_or_else(|| format!("{path}: a policy has no field {part}"))?;
        }
        Ok(())
    }

    /// Finds the first unknown field in a patch.
    pub(super) fn patch(&self, json: &str) -> Result<(), String> {
        let patch: Value = serde_json::from_str(json).map_err(|error| format!("a patch that is not JSON: {error}"))?;
        known(&self.0, &patch)
    }
}

fn known(schema: &Value, value: &Value) -> Result<(), String> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            known(field(schema, name).ok_or_else(|| format!("a policy has no field {name} there"))?, value)
        }),
        Value::Array(items) => items.iter().try_for_each(|item| known(schema, item)),
        _ => Ok(()),
    }
}

/// Returns the schema of a field of an object, or of the objects in a list.
fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    const METADATA: &Value = &Value::Null;
    let schema = schema.get("items").unwrap_or(schema);
    if name == "metadata" {
        return Some(METADATA);
    }
    schema.get("properties")?.get(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_schema() {
        let fields = Fields::new().expect("the schema of policies");
        for good in [".spec.rules[0].limits[*].requests", "status.traffic", ".status.conditions"] {
            fields.path(good).expect(good);
        }
        assert_eq!(fields.path(".spec.rule").unwrap_err(), ".spec.rule: a policy has no field rule");
        fields.patch(r#"{"spec":{"rules":[{"name":"a","limits":[{"requests":1}]}]}}"#).expect("good");
        assert!(fields.patch(r#"{"spec":{"rules":[{"limit":[]}]}}"#).is_err());
        assert!(fields.patch("{").is_err());
    }
}
