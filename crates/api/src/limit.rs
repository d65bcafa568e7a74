//! The limits of a rule: how many requests in how long, counted how.

use kube::{KubeSchema, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Period, names, period};

/// How many requests are let through in how long.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = countable(),
    validation = Rule::new("!has(self.burst) || self.strategy != 'FixedWindow'")
        .message("burst does not go with strategy FixedWindow, which has no burst: leave burst out, or use TokenBucket or GCRA")
        .field_path(".burst")
)]
pub struct Limit {
    /// Name, unique within the rule. Counters belong to it: a limit that keeps its name keeps its count.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = names::label())]
    pub name: String,
    /// How many requests a period lets through.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_requests())]
    pub requests: i64,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`.
    pub per: Period,
    /// How many requests may come at once. By default `requests` for TokenBucket and 1 for GCRA; not with FixedWindow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_burst())]
    pub burst: Option<i64>,
    /// How requests are counted.
    #[serde(default)]
    pub strategy: Strategy,
}

/// Other numbers for the limit of this name. What is left out is the default, not the rule's number.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = countable())]
pub struct OverrideLimit {
    /// Name of one of the rule's limits; its strategy stays.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How many requests a period lets through.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_requests())]
    pub requests: i64,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`.
    pub per: Period,
    /// How many requests may come at once. By default `requests` for TokenBucket and 1 for GCRA; not with FixedWindow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_burst())]
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

fn not_zero_requests() -> Rule {
    Rule::new("self != 0").message(
        "requests must not be 0, which never means unlimited: for no limit remove it or use action Bypass or mode Disabled",
    )
}

fn not_zero_burst() -> Rule {
    Rule::new("self != 0").message(
        "burst must not be 0, which never means unlimited: use 1 to let no two requests come at once, or leave burst out",
    )
}

/// Time is counted in nanoseconds, and there can be no more than one request in each.
fn countable() -> Rule {
    let syntax = period::PATTERN;
    Rule::new(format!(
        "self.requests <= 1000000 || !self.per.matches('{syntax}') || duration(self.per) >= duration('1s')"
    ))
    .message("requests beyond 1000000 need a per of 1s or more: write the same rate for a longer time")
    .field_path(".requests")
}
