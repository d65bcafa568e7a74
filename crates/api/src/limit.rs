//! The limits of a rule: how many requests in how long, counted how.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Period;

/// How many requests are let through in how long.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!has(self.burst) || self.strategy != 'FixedWindow'")
    .message("burst does not go with strategy FixedWindow, which has no burst: leave burst out, or use TokenBucket or GCRA")
    .field_path(".burst"))]
pub struct Limit {
    /// Name, unique within the rule. Counters belong to it: a limit that keeps its name keeps its count.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("name must be lower case letters, digits and '-', beginning and ending with a letter or digit"))]
    pub name: String,
    /// How many requests a period lets through.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("requests must not be 0, which never means unlimited: for no limit remove it or use action Bypass or mode Disabled"))]
    pub requests: i64,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`.
    pub per: Period,
    /// How many requests may come at once. By default `requests` for TokenBucket and 1 for GCRA; not with FixedWindow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("burst must not be 0, which never means unlimited: use 1 to let no two requests come at once, or leave burst out"))]
    pub burst: Option<i64>,
    /// How requests are counted.
    #[serde(default)]
    pub strategy: Strategy,
}

/// Other numbers for the limit of this name. What is left out is the default, not the rule's number.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideLimit {
    /// Name of one of the rule's limits; its strategy stays.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How many requests a period lets through.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("requests must not be 0, which never means unlimited: for no limit remove it or use action Bypass or mode Disabled"))]
    pub requests: i64,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`.
    pub per: Period,
    /// How many requests may come at once. By default `requests` for TokenBucket and 1 for GCRA; not with FixedWindow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("burst must not be 0, which never means unlimited: use 1 to let no two requests come at once, or leave burst out"))]
    pub burst: Option<i64>,
}

/// How requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// A steady rate, of which up to `burst` requests are saved up for later.
    #[default]
    TokenBucket,
    /// A steady rate with strict spacing between requests.
    #[serde(rename = "GCRA")]
    Gcra,
    /// `requests` per period, with periods aligned to the clock. Around a boundary twice as many can pass.
    FixedWindow,
}
