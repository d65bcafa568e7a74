//! Reads a value from the chart or from an annotation. The same wrong value gives the same error in both places.

use std::collections::BTreeMap;

/// Parses a value of the chart. The error names the value and the allowed values.
pub(super) fn read<T>(
    name: &str,
    text: Option<String>,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(text) = text else { return Ok(None) };
    parse(&text).map(Some).ok_or_else(|| format!("{name} is {text:?}: it must be {expected}"))
}

/// The longest duration in a flag of the agent, in seconds. The agent does not start with more digits.
pub(super) const LONGEST: i64 = 999_999_999;

/// The annotations of a pod, and a list that collects their faults.
pub(super) struct AnnotationReader<'a, 'b> {
    pub(super) annotations: &'a BTreeMap<String, String>,
    pub(super) faults: &'b mut Vec<String>,
}

impl AnnotationReader<'_, '_> {
    pub(super) fn value<T>(&mut self, name: &str, expected: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        self.fallible(name, |text| parse(text).ok_or_else(|| expected.to_owned()))
    }

    pub(super) fn fallible<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = self.annotations.get(name)?;
        let value = parse(text);
        let value = value.map_err(|expected| format!("annotation {name} is {:?}: it must be {expected}", shown(text)));
        value.map_err(|fault| self.faults.push(fault)).ok()
    }
}

/// Returns a text for a message, without the rest of a long text.
pub(super) fn shown(text: &str) -> String {
    shortened(text, 200)
}

/// Returns the first bytes of a text, with an ellipsis in place of the rest.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(most)])
}

/// Returns the whole seconds of a duration such as `20s` or `1m30s`.
pub(super) fn seconds(text: &str) -> Option<i64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"hms".contains(&byte));
    let duration: jiff::SignedDuration = text.parse().ok().filter(|_| is_plain)?;
    (duration.subsec_nanos() == 0 && (1..=LONGEST).contains(&duration.as_secs())).then(|| duration.as_secs())
}
