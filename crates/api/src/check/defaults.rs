//! Drops nulls and fills in defaults, as the apiserver does before it validates a document.

use serde_json::{Number, Value};

pub(super) fn apply(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(fields) => {
            let known = schema.get("properties").and_then(Value::as_object);
            fields.retain(|field, value| {
                let schema = known.and_then(|known| known.get(field)).or(schema.get("additionalProperties"));
                !(value.is_null() && schema.is_some_and(|schema| schema["nullable"] != Value::Bool(true)))
            });
            for (field, schema) in known.into_iter().flatten() {
                if let (Some(default), false) = (schema.get("default"), fields.contains_key(field)) {
                    fields.insert(field.clone(), default.clone());
                }
            }
            for (field, value) in fields {
                let schema = known.and_then(|known| known.get(field)).or(schema.get("additionalProperties"));
                if let Some(schema) = schema {
                    apply(value, schema);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.get("items") {
                for item in items {
                    apply(item, schema);
                }
            }
        }
        Value::Number(number) if schema["type"] == "integer" => {
            if let Some(whole) = whole(number) {
                *value = whole.into();
            }
        }
        _ => {}
    }
}

/// Converts a whole float to an integer, because kubectl sends `1.0` as `1`.
fn whole(number: &Number) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    let float = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT)?;
    #[expect(clippy::cast_possible_truncation, reason = "the number is whole, and small enough to be exact")]
    Some(float as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_floats_become_integers_and_fractions_stay() {
        let schema = json!({ "type": "array", "items": { "type": "integer" } });
        let mut value = json!([1, 2.0, 2.5, 1e300, "3.0"]);
        apply(&mut value, &schema);
        assert_eq!(value, json!([1, 2, 2.5, 1e300, "3.0"]));
    }

    #[test]
    fn nulls_and_gaps_take_defaults_and_nothing_else_does() {
        let inner = json!({ "type": "object", "properties": { "x": { "type": "integer", "default": 3 } } });
        let schema = json!({ "type": "object", "properties": {
            "gap": { "type": "string", "default": "filled" },
            "null": { "type": "string", "default": "filled" },
            "given": { "type": "string", "default": "filled" },
            "plain": { "type": "string" },
            "allowed": { "type": "string", "nullable": true },
            "absent": inner,
            "present": inner,
        } });
        let mut value = json!({ "null": null, "given": "own", "plain": null, "allowed": null, "present": {} });
        apply(&mut value, &schema);
        let expected =
            json!({ "gap": "filled", "null": "filled", "given": "own", "allowed": null, "present": { "x": 3 } });
        assert_eq!(value, expected);
    }
}
