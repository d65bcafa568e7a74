//! The limits of a rule: how many requests, in which period, counted by which strategy.

use kube::{KubeSchema, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Period, duration, names};

/// How many requests are admitted per period.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = countable(),
    validation = Rule::new("!has(self.burst) || !(self.strategy in ['FixedWindow', 'SlidingWindowCounter', 'SlidingWindowLog'])")
        .message("burst is not valid with FixedWindow, SlidingWindowCounter and SlidingWindowLog, which save no requests: remove burst, or use strategy TokenBucket or GCRA")
        .field_path(".burst"),
    validation = Rule::new("!has(self.debt) || self.strategy == 'TokenBucketWithDebt'")
        .message("debt is valid only with strategy TokenBucketWithDebt: remove debt, or use that strategy")
        .field_path(".debt"),
    validation = Rule::new("self.strategy != 'SlidingWindowLog' || self.requests <= 1048576")
        .message("requests must be at most 1048576 with strategy SlidingWindowLog, which remembers each of them: use SlidingWindowCounter for more")
        .field_path(".requests")
)]
pub struct Limit {
    /// Name, unique within the rule. Counters belong to the name: a limit that keeps its name keeps its count.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = names::label())]
    pub name: String,
    /// How many requests a period admits.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_requests())]
    pub requests: i64,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`.
    pub per: Period,
    /// How many requests may come at once; for LeakyBucket, how many may wait in the queue. Defaults to 1 for GCRA and
    /// to `requests` for the others. Not with FixedWindow, SlidingWindowCounter and SlidingWindowLog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_burst())]
    pub burst: Option<i64>,
    /// How many requests a TokenBucketWithDebt may be overdrawn by. Defaults to no debt. Only with that strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_debt())]
    pub debt: Option<i64>,
    /// How requests are counted.
    #[serde(default)]
    pub strategy: Strategy,
}

/// Other numbers for the limit of this name. A field that is left out has its default, not the rule's number.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = countable())]
pub struct OverrideLimit {
    /// Name of one of the rule's limits. The strategy stays.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How many requests a period admits.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_requests())]
    pub requests: i64,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`.
    pub per: Period,
    /// How many requests may come at once; for LeakyBucket, how many may wait in the queue. Defaults to 1 for GCRA and
    /// to `requests` for the others. Not with FixedWindow, SlidingWindowCounter and SlidingWindowLog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_burst())]
    pub burst: Option<i64>,
    /// How many requests a TokenBucketWithDebt may be overdrawn by. Defaults to no debt. Only with that strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_debt())]
    pub debt: Option<i64>,
}

/// How requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// A steady rate; up to `burst` unused requests are saved for later.
    #[default]
    TokenBucket,
    /// A TokenBucket that may be overdrawn by up to `debt` requests. It pays the debt back before it saves again.
    TokenBucketWithDebt,
    /// A steady rate with strict spacing between requests.
    #[serde(rename = "GCRA")]
    Gcra,
    /// Evenly paced. Of the requests that come too soon, up to `burst` wait in the queue if the rule lets requests
    /// wait.
    LeakyBucket,
    /// `requests` per period, with periods aligned to the clock. Up to twice as many can pass around a boundary.
    FixedWindow,
    /// `requests` in this period plus the share of the last period that is less than one period ago. Exact if the
    /// requests of the last period came evenly.
    SlidingWindowCounter,
    /// Never more than `requests` in any period. Each request is remembered, so at most 1048576.
    SlidingWindowLog,
}

fn not_zero_requests() -> Rule {
    Rule::new("self != 0").message(
        "requests must not be 0, which never means unlimited: for no limit remove it or use action Bypass or mode Disabled",
    )
}

fn not_zero_burst() -> Rule {
    Rule::new("self != 0").message(
        "burst must not be 0, which never means unlimited: use 1 to let no two requests come at once, or remove burst",
    )
}

fn not_zero_debt() -> Rule {
    Rule::new("self != 0").message("debt must not be 0, which never means unlimited: for no debt remove it")
}

/// Time is counted in nanoseconds, with at most one request in each.
fn countable() -> Rule {
    let syntax = duration::PATTERN;
    Rule::new(format!(
        "self.requests <= 1000000 || !self.per.matches('{syntax}') || duration(self.per) >= duration('1s')"
    ))
    .message("requests beyond 1000000 need a per of 1s or more: write the same rate for a longer time")
    .field_path(".requests")
}
