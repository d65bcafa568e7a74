//! What a cluster reads or checks in another way than standalone mode.
//!
//! kubectl reads YAML 1.1, where a word such as `on` is a boolean and `010` is a number. This module follows kubectl's
//! library, `sigs.k8s.io/yaml`, which has no numbers in base 60.

use serde_json::Value;

use crate::world::Fault;

/// The most bytes of a namespace, of the name of a label without its prefix, and of its value.
const LONGEST: usize = 63;
/// The most bytes of the prefix of a label's name.
const LONGEST_PREFIX: usize = 253;

/// Returns what kubectl reads in place of an unquoted text, or `None` if it reads the text.
pub(super) fn misread(text: &str) -> Option<String> {
    let read = match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => "true",
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => "false",
        ".nan" | ".NaN" | ".NAN" => "not a number",
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" => "an infinite number",
        _ => return number(text),
    };
    Some(read.to_owned())
}

/// Returns what kubectl reads in place of the unquoted name of a field, or `None` if it reads the name. `value` is the
/// name as YAML 1.2 reads it.
pub(super) fn misread_name(name: &str, value: &Value) -> Option<String> {
    let read = match value {
        Value::String(_) => misread(name)?,
        // kubectl writes a name of 32 bits.
        #[expect(clippy::cast_possible_truncation, reason = "the loss is what the comparison must find")]
        Value::Number(number) if number.is_f64() => (number.as_f64().unwrap_or_default() as f32).to_string(),
        other => other.to_string(),
    };
    (read != name).then_some(read)
}

/// Returns the number that kubectl reads in a text which is no number in YAML 1.2, such as `010` or `1_000`.
fn number(text: &str) -> Option<String> {
    text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)).then_some(())?;
    let plain = text.replace('_', "");
    let digits = plain.strip_prefix(['+', '-']).unwrap_or(&plain);
    let sign = if plain.starts_with('-') { "-" } else { "" };
    let (base, rest) = match digits.get(..2).unwrap_or_default() {
        "0x" | "0X" => (16, &digits[2..]),
        "0o" | "0O" => (8, &digits[2..]),
        "0b" | "0B" => (2, &digits[2..]),
        start if start.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    let whole = i128::from_str_radix(&format!("{sign}{rest}"), base).ok();
    let whole =
        whole.filter(|whole| !rest.starts_with(['+', '-']) && (i64::MIN.into()..=u64::MAX.into()).contains(whole));
    if let Some(whole) = whole {
        return Some(whole.to_string());
    }
    let is_float = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && digits.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    let float = plain.parse().ok().filter(|float: &f64| is_float && float.is_finite());
    float.map(|float| float.to_string())
}

/// Returns the faults of a namespace and of labels, which a cluster checks outside of the schema.
pub(super) fn faults_of_metadata(document: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |path: String, message: &str| faults.push(Fault { path, message: message.to_owned() });
    let metadata = &document["metadata"];
    if let Some(namespace) = metadata["namespace"].as_str()
        && !namespace.is_empty()
        && !is_label(namespace)
    {
        let message = "must be the name of a namespace: at most 63 lowercase letters, digits and '-', beginning and ending \
                       with a letter or digit";
        fault("metadata.namespace".to_owned(), message);
    }
    for (name, value) in metadata["labels"].as_object().into_iter().flatten() {
        let path = || format!("metadata.labels.{name}");
        let (prefix, last) = name.rsplit_once('/').map_or((None, &**name), |(prefix, last)| (Some(prefix), last));
        let has_prefix = prefix.is_none_or(|it| it.len() <= LONGEST_PREFIX && it.split('.').all(is_label));
        if !has_prefix || !is_word(last) {
            fault(path(), "must be a valid name of a label, such as app or app.kubernetes.io/name");
        }
        if value.as_str().is_some_and(|value| !value.is_empty() && !is_word(value)) {
            let message = "must be a valid value of a label: at most 63 letters, digits, '-', '_' and '.', beginning and \
                           ending with a letter or digit";
            fault(path(), message);
        }
    }
    faults
}

/// Returns true for a DNS label.
fn is_label(text: &str) -> bool {
    is_word(text) && text.bytes().all(|byte| !byte.is_ascii_uppercase() && !b"_.".contains(&byte))
}

fn is_word(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= LONGEST
        && is_end(text.bytes().next())
        && is_end(text.bytes().last())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// These are results of `sigs.k8s.io/yaml` 1.4.
    #[test]
    fn words_are_read_as_kubectl_reads_them() {
        for (text, read) in [
            ("on", Some("true")),
            ("Yes", Some("true")),
            ("n", Some("false")),
            ("OFF", Some("false")),
            ("oN", None),
            ("010", Some("8")),
            ("-010", Some("-8")),
            ("+0b1_1", Some("3")),
            ("0X1F", Some("31")),
            ("0xffffffffffffffff", Some("18446744073709551615")),
            ("0x1ffffffffffffffff", None),
            ("1_000", Some("1000")),
            ("0.1_0", Some("0.1")),
            ("08", Some("8")),
            (".5_0", Some("0.5")),
            ("0_", Some("0")),
            ("1_e3", Some("1000")),
            (".inf", Some("an infinite number")),
            ("1e999", None),
            ("_1", None),
            ("+", None),
            ("1-2", None),
            ("--1", None),
            ("0x-1", None),
            ("10:30", None),
            ("2026-01-01", None),
            ("1.2.3", None),
            ("ü", None),
            ("0ü", None),
            ("", None),
        ] {
            assert_eq!(misread(text).as_deref(), read, "{text:?}");
        }
        for (name, value, read) in [
            ("app", json!("app"), None),
            ("7", json!(7), None),
            ("1e3", json!(1000.0), Some("1000")),
            ("1.5", json!(1.5), None),
            ("1.10", json!(1.1), Some("1.1")),
            ("true", json!(true), None),
            ("True", json!(true), Some("true")),
            ("~", json!(null), Some("null")),
            ("no", json!("no"), Some("false")),
        ] {
            assert_eq!(misread_name(name, &value).as_deref(), read, "{name:?}");
        }
    }

    #[test]
    fn namespaces_and_labels_are_checked_as_a_cluster_checks_them() {
        let long = "a".repeat(64);
        for (metadata, faulty) in [
            (json!({"namespace": "shop-1", "labels": {"app": "", "a.b/C_d": "x.Y_1"}}), None),
            (json!({}), None),
            (json!({"namespace": "Shop"}), Some("metadata.namespace: must be the name")),
            (json!({"namespace": "a.b"}), Some("metadata.namespace: must be the name")),
            (json!({"namespace": long}), Some("metadata.namespace: must be the name")),
            (json!({"labels": {"a b": "c"}}), Some("metadata.labels.a b: must be a valid name")),
            (json!({"labels": {"A/b": "c"}}), Some("metadata.labels.A/b: must be a valid name")),
            (json!({"labels": {"a/b/c": "d"}}), Some("metadata.labels.a/b/c: must be a valid name")),
            (json!({"labels": {"app": "a b"}}), Some("metadata.labels.app: must be a valid value")),
            (json!({"labels": {"app": "-a"}}), Some("metadata.labels.app: must be a valid value")),
            (json!({"labels": {"app": long}}), Some("metadata.labels.app: must be a valid value")),
        ] {
            let faults = faults_of_metadata(&json!({"metadata": metadata}));
            let found: Vec<_> = faults.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), usize::from(faulty.is_some()), "{metadata}: {found:?}");
            assert!(found.iter().zip(faulty).all(|(it, start)| it.starts_with(start)), "{metadata}: {found:?}");
        }
    }
}
