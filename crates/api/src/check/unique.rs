//! Checks lists that are sets, or maps by some of their fields: no two items may be equal, or have equal keys.

use serde_json::{Map, Value};

use super::{Fault, child, quoted};

pub(super) fn check(document: &Value, schema: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    walk(document, schema, "", &mut faults);
    faults
}

fn walk(value: &Value, schema: &Value, path: &str, faults: &mut Vec<Fault>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                if let Some(schema) = schema.get("properties").and_then(|known| known.get(field)) {
                    walk(value, schema, &child(path, field), faults);
                }
            }
        }
        Value::Array(items) => {
            match schema["x-kubernetes-list-type"].as_str() {
                Some("map") => check_map(items, &schema["x-kubernetes-list-map-keys"], path, faults),
                Some("set") => check_set(items, path, faults),
                _ => {}
            }
            if let Some(schema) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    walk(item, schema, &format!("{path}[{index}]"), faults);
                }
            }
        }
        _ => {}
    }
}

fn check_map(items: &[Value], names: &Value, path: &str, faults: &mut Vec<Fault>) {
    if let Some(index) = items.iter().position(|item| !item.is_object() && !item.is_null()) {
        let detail = "must be an object for an array of list-type map";
        faults.push(Fault::invalid(format!("{path}[{index}]"), quoted(&items[index]), detail));
        return;
    }
    let names: Vec<&str> = names.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let key = |item: &Value| -> Map<String, Value> {
        names.iter().filter_map(|name| item.get(*name).map(|value| ((*name).to_owned(), value.clone()))).collect()
    };
    let keys: Vec<Value> = items.iter().map(|item| Value::Object(key(item))).collect();
    check_set(&keys, path, faults);
}

/// Reports the second of several equal items, but no further ones, as the apiserver does.
fn check_set(items: &[Value], path: &str, faults: &mut Vec<Fault>) {
    for (index, item) in items.iter().enumerate() {
        if items[..index].iter().filter(|earlier| *earlier == item).count() == 1 {
            faults.push(Fault::new(format!("{path}[{index}]"), format!("Duplicate value: {}", quoted(item))));
        }
    }
}
