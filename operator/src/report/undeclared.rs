//! Removes from a status the fields that the cluster's definition does not have, because it is older than this operator.
//! The rest of the status is still useful.

use std::collections::BTreeSet;

use serde_json::Value;

/// The end of the apiserver's message about such a field, after its path.
const UNDECLARED: &str = ": field not declared in schema";

/// Removes from a patch each field of the status that this message of the apiserver names. Returns the removed fields.
pub(super) fn remove_undeclared(patch: &mut Value, message: &str) -> BTreeSet<String> {
    let mut parts: Vec<&str> = message.split(UNDECLARED).collect();
    parts.pop();
    let paths = parts.into_iter().filter_map(|part| part.rsplit(char::is_whitespace).next());
    let fields: BTreeSet<Vec<String>> = paths.map(names).collect();
    let of_status = fields.into_iter().filter(|names| names.len() > 1 && names[0] == "status");
    of_status.filter(|names| remove(patch, names)).map(|names| names.join(".")).collect()
}

/// Returns the names in a path such as `.status.enforcement.drifted[pod="web.1"].reason`, without the entries of lists.
fn names(path: &str) -> Vec<String> {
    let (mut names, mut is_entry, mut is_quoted) = (Vec::<String>::new(), false, false);
    for char in path.chars() {
        match char {
            '"' => is_quoted = !is_quoted,
            '[' | ']' if !is_quoted => is_entry = char == '[',
            '.' if !is_entry => names.push(String::new()),
            _ if !is_entry => names.last_mut().into_iter().for_each(|name| name.push(char)),
            _ => {}
        }
    }
    names
}

/// Removes a field, in a list from each entry. Returns false if there is none.
fn remove(value: &mut Value, names: &[String]) -> bool {
    match (value, names) {
        (Value::Array(entries), _) => entries.iter_mut().fold(false, |removed, entry| remove(entry, names) | removed),
        (Value::Object(fields), [name]) => fields.remove(name).is_some(),
        (Value::Object(fields), [name, rest @ ..]) => fields.get_mut(name).is_some_and(|value| remove(value, rest)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_fields_that_the_apiserver_names_are_removed() {
        let status = json!({
            "newer": 1,
            "enforcement": {"drifted": [{"pod": "web.1", "newer": 1}, {"pod": "web-2"}, {"pod": "a", "newer": [2]}]},
            "traffic": {"byRule": [{"name": "r", "of": {"newer": {"a": 1}}}], "newer": 0},
        });
        let whole = json!({"apiVersion": "weir.dev/v1alpha1", "metadata": {"name": "p", "newer": 1}, "status": status});
        let typed = "failed to create typed patch object (shop/p; weir.dev/v1alpha1, Kind=RateLimitPolicy):";
        for (message, expected) in [
            (format!("{typed} .status.newer: field not declared in schema"), vec!["status.newer"]),
            (
                format!(
                    "{typed} errors:\n  .status.enforcement.drifted[pod=\"web.1\"].newer: field not declared in schema\n  \
                     .status.traffic.byRule[name=\"r\"].of.newer: field not declared in schema\n  \
                     .status.traffic.byRule[0].of.newer: field not declared in schema"
                ),
                vec!["status.enforcement.drifted.newer", "status.traffic.byRule.of.newer"],
            ),
            (format!("{typed} .status.enforcement: field not declared in schema"), vec!["status.enforcement"]),
            (format!("{typed} .status.absent: field not declared in schema"), vec![]),
            (format!("{typed} .metadata.newer: field not declared in schema"), vec![]),
            (format!("{typed} .status: field not declared in schema"), vec![]),
            (": field not declared in schema".to_owned(), vec![]),
            ("on demand".to_owned(), vec![]),
        ] {
            let mut patch = whole.clone();
            let removed = remove_undeclared(&mut patch, &message);
            assert_eq!(removed.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{message}");
            let left = patch.to_string().matches("newer").count();
            let all = whole.to_string().matches("newer").count();
            let of_each = |field: &&str| match *field {
                "status.enforcement.drifted.newer" | "status.enforcement" => 2,
                _ => 1,
            };
            assert_eq!(all - left, expected.iter().map(of_each).sum::<usize>(), "{message}: {patch}");
        }
    }
}
