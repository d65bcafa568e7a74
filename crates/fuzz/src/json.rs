//! Makes small changes to JSON. The result is still JSON, and usually of the same form.

use serde_json::{Value, json};

use crate::Choices;

/// Numbers at the bounds of types and limits.
pub const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    3,
    8,
    63,
    64,
    100,
    128,
    129,
    200,
    400,
    429,
    599,
    600,
    1000,
    65_536,
    1_000_000,
    1_000_001,
    86_400_000,
    1 << 20,
    1 << 30,
    1 << 32,
    1 << 53,
    i64::MAX as u64,
    u64::MAX,
];

/// Replaces, removes or repeats a part of the value. `words` are strings that fit the form.
pub fn change(value: &mut Value, words: &[&str], choices: &mut Choices<'_>) {
    let count = nodes(value);
    // A copied part has the right form more often than a generated part.
    let copy = node(value, &mut choices.below(count)).cloned().unwrap_or_default();
    let Some(target) = node_mut(value, &mut choices.below(count)) else { return };
    match target {
        Value::Array(list) if choices.rarely(2) => match choices.below(3) {
            0 if !list.is_empty() => drop(list.remove(choices.below(list.len()))),
            1 if !list.is_empty() => list.push(list[choices.below(list.len())].clone()),
            _ => list.push(copy),
        },
        Value::Object(fields) if choices.rarely(2) && !fields.is_empty() => {
            let names: Vec<String> = fields.keys().cloned().collect();
            let name = choices.one(&names);
            match choices.below(3) {
                0 => drop(fields.remove(name)),
                1 => drop(fields.insert(name.clone(), copy)),
                _ => drop(fields.insert((*choices.one(words)).to_owned(), copy)),
            }
        }
        Value::Number(_) if !choices.rarely(8) => *target = json!(choices.one(NUMBERS)),
        Value::String(_) if !choices.rarely(8) => *target = json!(choices.one(words)),
        _ => {
            *target = match choices.below(8) {
                0 => Value::Null,
                1 => json!(choices.one(NUMBERS)),
                2 => json!(choices.one(words)),
                3 => json!(true),
                4 => json!([]),
                5 => json!({}),
                6 => json!(-1.5),
                _ => copy,
            }
        }
    }
}

/// Returns the number of parts of a value, including the value itself.
#[must_use]
pub fn nodes(value: &Value) -> usize {
    1 + children(value).map(nodes).sum::<usize>()
}

fn children(value: &Value) -> impl Iterator<Item = &Value> {
    let list = value.as_array().into_iter().flatten();
    list.chain(value.as_object().into_iter().flat_map(serde_json::Map::values))
}

fn node<'a>(value: &'a Value, place: &mut usize) -> Option<&'a Value> {
    if *place == 0 {
        return Some(value);
    }
    *place -= 1;
    children(value).find_map(|child| node(child, place))
}

fn node_mut<'a>(value: &'a mut Value, place: &mut usize) -> Option<&'a mut Value> {
    if *place == 0 {
        return Some(value);
    }
    *place -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|child| node_mut(child, place)),
        Value::Object(fields) => fields.values_mut().find_map(|child| node_mut(child, place)),
        _ => None,
    }
}
