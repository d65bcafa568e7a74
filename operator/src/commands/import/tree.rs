//! The file of envoyproxy/ratelimit.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, value::MapAccessDeserializer},
};
use serde_json::Value;

/// A value that is written as a map. serde also reads a list as the fields of a struct, in their order.
#[derive(Debug)]
pub(super) struct OnlyMap<T>(pub(super) T);

/// A file: the descriptors of one domain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) domain: String,
    #[serde(default, deserialize_with = "maps")]
    pub(super) descriptors: Vec<Node>,
}

/// A descriptor. It matches an entry of a request's descriptor, and its `descriptors` match the next entry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) key: String,
    /// The value in the file. Empty if there is none.
    #[serde(default, deserialize_with = "text")]
    pub(super) value: String,
    #[serde(default, deserialize_with = "map_or_null")]
    pub(super) rate_limit: Option<RateLimit>,
    #[serde(default, deserialize_with = "maps")]
    pub(super) descriptors: Vec<Self>,
    #[serde(default)]
    pub(super) shadow_mode: bool,
    #[serde(default)]
    pub(super) quota_mode: bool,
    /// This field and the next one select labels of metrics only.
    #[serde(default)]
    pub(super) detailed_metric: bool,
    #[serde(default)]
    pub(super) value_to_metric: bool,
    #[serde(default)]
    pub(super) share_threshold: bool,
    /// What the service adds to its answers, as metadata for Envoy.
    #[serde(default)]
    pub(super) metadata: Option<Value>,
}

/// The limit of a descriptor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RateLimit {
    #[serde(default, deserialize_with = "count")]
    pub(super) requests_per_unit: u32,
    #[serde(default)]
    pub(super) unit: String,
    #[serde(default)]
    pub(super) unlimited: bool,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default, deserialize_with = "maps")]
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

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OnlyMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = OnlyMap<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(OnlyMap)
            }
        }

        deserializer.deserialize_map(Visitor(PhantomData))
    }
}

fn maps<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let maps: Option<Vec<_>> = Option::deserialize(deserializer)?;
    Ok(maps.into_iter().flatten().map(|OnlyMap(map)| map).collect())
}

fn map_or_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let map = Option::deserialize(deserializer)?;
    Ok(map.map(|OnlyMap(map)| map))
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
    count
        .ok_or_else(|| de::Error::custom(format_args!("is {value}, and must be a whole number from 0 to {}", u32::MAX)))
}

/// Reads a text. A number or a boolean is refused, because it can be written in several ways.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Number(_) | Value::Bool(_) => Err(de::Error::custom("must be a text: write it in quotes")),
        _ => Err(de::Error::custom("must be a text")),
    }
}
