//! The limits of a rule: a number of requests per period, and the strategy that counts them.

use kube::{KubeSchema, core::Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Period, duration, names};

/// A limit: the number of requests that are admitted per period, or that may be in flight.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = one_kind(),
    validation = Rule::new("!has(self.concurrent) || !(has(self.requests) || has(self.per) || has(self.burst) || has(self.debt) || (has(self.strategy) && self.strategy != 'TokenBucket'))")
        .message("concurrent is not valid with requests, per, burst, debt and strategy, which limit a rate: remove them, or use another rule for the rate")
        .field_path(".concurrent"),
    validation = countable(),
    validation = Rule::new("!has(self.burst) || !has(self.strategy) || !(self.strategy in ['FixedWindow', 'SlidingWindowCounter', 'SlidingWindowLog'])")
        .message("burst is not valid with FixedWindow, SlidingWindowCounter and SlidingWindowLog, which save no requests: remove burst, or use strategy TokenBucket or GCRA")
        .field_path(".burst"),
    validation = Rule::new("!has(self.debt) || (has(self.strategy) && self.strategy == 'TokenBucketWithDebt')")
        .message("debt is valid only with strategy TokenBucketWithDebt: remove debt, or use that strategy")
        .field_path(".debt"),
    validation = Rule::new("!has(self.strategy) || self.strategy != 'SlidingWindowLog' || !has(self.requests) || self.requests <= 1048576")
        .message("requests must be at most 1048576 with strategy SlidingWindowLog, which remembers each of them: use SlidingWindowCounter for more")
        .field_path(".requests")
)]
pub struct Limit {
    /// Name of the limit, unique within the rule. A limit that is changed but keeps its name also keeps its count.
    /// Another name starts a new count, and so does changing back.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = names::label())]
    pub name: String,
    /// Number of requests that are admitted per period. Requires `per`; not allowed with `concurrent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_requests())]
    pub requests: Option<i64>,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`. Requires `requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub per: Option<Period>,
    /// Maximum number of requests in flight. A request is in flight until its response has ended, and a WebSocket
    /// connection until it is closed. Such a limit is the only one of its rule. Not allowed with the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_concurrent())]
    pub concurrent: Option<i64>,
    /// Maximum number of requests that are admitted at the same time; for LeakyBucket, the maximum length of the queue.
    /// Defaults to 1 for GCRA and to `requests` for the other strategies. Not allowed with FixedWindow,
    /// SlidingWindowCounter and SlidingWindowLog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_burst())]
    pub burst: Option<i64>,
    /// Number of requests by which a TokenBucketWithDebt can be overdrawn. Defaults to no debt. Allowed only with that
    /// strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_debt())]
    pub debt: Option<i64>,
    /// The algorithm that counts requests.
    #[serde(default)]
    pub strategy: Strategy,
}

/// Other numbers for the limit of this name. An absent field has its default value, not the value of the rule's limit.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(
    validation = one_kind(),
    validation = Rule::new("!has(self.concurrent) || !(has(self.requests) || has(self.per) || has(self.burst) || has(self.debt))")
        .message("concurrent is not valid with requests, per, burst and debt, which limit a rate: remove them")
        .field_path(".concurrent"),
    validation = countable()
)]
pub struct OverrideLimit {
    /// Name of one of the rule's limits, whose strategy is used.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Number of requests that are admitted per period. Requires `per`; not allowed with `concurrent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_requests())]
    pub requests: Option<i64>,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`. Requires `requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Period")]
    pub per: Option<Period>,
    /// Maximum number of requests in flight. A request is in flight until its response has ended, and a WebSocket
    /// connection until it is closed. Such a limit is the only one of its rule. Not allowed with the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_concurrent())]
    pub concurrent: Option<i64>,
    /// Maximum number of requests that are admitted at the same time; for LeakyBucket, the maximum length of the queue.
    /// Defaults to 1 for GCRA and to `requests` for the other strategies. Not allowed with FixedWindow,
    /// SlidingWindowCounter and SlidingWindowLog.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_burst())]
    pub burst: Option<i64>,
    /// Number of requests by which a TokenBucketWithDebt can be overdrawn. Defaults to no debt. Allowed only with that
    /// strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64", range(min = 1, max = 1_000_000_000))]
    #[x_kube(validation = not_zero_debt())]
    pub debt: Option<i64>,
}

impl Limit {
    /// The requests of a period. `None` for a concurrent limit.
    pub fn rate(&self) -> Option<(i64, &Period)> {
        self.requests.zip(self.per.as_ref())
    }
}

/// The algorithm that counts requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// A steady rate; up to `burst` unused requests are saved for later.
    #[default]
    TokenBucket,
    /// A TokenBucket that can be overdrawn by up to `debt` requests. The debt is repaid before requests are saved
    /// again.
    TokenBucketWithDebt,
    /// A steady rate with strict spacing between requests.
    #[serde(rename = "GCRA")]
    Gcra,
    /// Evenly paced requests. If the rule lets requests wait, up to `burst` requests that arrive too early wait in a
    /// queue.
    LeakyBucket,
    /// At most `requests` per period, with periods aligned to the clock. Around a boundary of periods, up to twice as
    /// many requests can pass in the time of one period.
    FixedWindow,
    /// At most `requests` in a sliding period. The counts of the current and the previous period estimate the requests
    /// in the sliding period. The estimate is exact if the requests of the previous period arrived evenly.
    SlidingWindowCounter,
    /// Never more than `requests` in any period. The time of each request is stored, so the maximum is 1048576.
    SlidingWindowLog,
}

fn not_zero_requests() -> Rule {
    Rule::new("self != 0").message(
        "requests must not be 0, which never means unlimited: for no limit remove it or use action Bypass or mode Disabled",
    )
}

fn not_zero_concurrent() -> Rule {
    Rule::new("self != 0").message(
        "concurrent must not be 0, which never means unlimited: for no limit remove it; to refuse all requests use action Deny",
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

fn one_kind() -> Rule {
    Rule::new("has(self.concurrent) || (has(self.requests) && has(self.per))").message(
        "requests and per are required: add both for a rate, or use concurrent to limit how many requests are in flight",
    )
}

/// Limits the rate to one request per nanosecond, the resolution of the engine's time.
fn countable() -> Rule {
    let syntax = duration::PATTERN;
    Rule::new(format!(
        "!has(self.requests) || !has(self.per) || self.requests <= 1000000 || !self.per.matches('{syntax}') || duration(self.per) >= duration('1s')"
    ))
    .message("requests beyond 1000000 need a per of 1s or more: write the same rate for a longer time")
    .field_path(".requests")
}
