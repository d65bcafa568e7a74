//! The file of envoyproxy/ratelimit.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// A file: the descriptors of one domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) domain: String,
    #[serde(default)]
    pub(super) descriptors: Vec<Node>,
}

/// A descriptor. It matches an entry of a request's descriptor, and its `descriptors` match the next entry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) key: String,
    /// The value in the file. Empty if there is none.
    #[serde(default, deserialize_with = "scalar")]
    pub(super) value: String,
    pub(super) rate_limit: Option<RateLimit>,
    #[serde(default)]
    pub(super) descriptors: Vec<Self>,
    #[serde(default)]
    pub(super) shadow_mode: bool,
    #[serde(default)]
    pub(super) quota_mode: bool,
    /// This field and the next one select labels of metrics only.
    #[serde(default, rename = "detailed_metric")]
    _detailed_metric: bool,
    #[serde(default, rename = "value_to_metric")]
    _value_to_metric: bool,
    #[serde(default)]
    pub(super) share_threshold: bool,
}

/// The limit of a descriptor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    #[serde(default)]
    pub(super) requests_per_unit: u32,
    #[serde(default)]
    pub(super) unit: String,
    #[serde(default)]
    pub(super) unlimited: bool,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) replaces: Vec<Named>,
}

/// The name of a limit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    pub(super) name: String,
}

/// The values that a node matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern<'a> {
    /// Every value that no sibling matches.
    Any,
    Exact(&'a str),
    Prefix(&'a str),
}

impl Node {
    pub(super) fn pattern(&self) -> Pattern<'_> {
        match self.value.strip_suffix('*') {
            Some(start) => Pattern::Prefix(start),
            None if self.value.is_empty() => Pattern::Any,
            None => Pattern::Exact(&self.value),
        }
    }

    /// Returns true if each value has a count of its own.
    pub(super) fn separates(&self) -> bool {
        match self.pattern() {
            Pattern::Any => true,
            Pattern::Exact(_) => false,
            Pattern::Prefix(_) => !self.share_threshold,
        }
    }
}

/// Reads a text, a number or a boolean as text.
fn scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(bool) => Ok(bool.to_string()),
        _ => Err(de::Error::custom("must be a text")),
    }
}
