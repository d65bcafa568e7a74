//! Tables of tests in text: one row a line.

use serde_json::Value;

/// Splits a table into rows of N columns. ` | ` separates the columns, and a line that begins with `#` is a comment.
pub(crate) fn rows<const N: usize>(table: &str) -> impl Iterator<Item = [&str; N]> {
    let lines = table.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let columns: Vec<_> = line.split(" |").map(str::trim).collect();
        columns.try_into().unwrap_or_else(|columns: Vec<_>| panic!("{} columns in place of {N}: {line}", columns.len()))
    })
}

pub(crate) fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the value with changes in YAML. The change of a field to `null` removes it.
pub(crate) fn changed(value: &Value, changes: &str) -> Value {
    let mut value = value.clone();
    json_patch::merge(&mut value, &yaml(changes));
    value
}
