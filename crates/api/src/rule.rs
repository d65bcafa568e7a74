//! One rule: the requests that it matches, the key by which it counts, and its limits.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use crate::{
    Ban, Cost, KeyPart, Limit, Match, Mode, OnLimit, OverrideLimit, Period, ResponseHeader, SharedRule, duration, names,
};

/// A rule limits, exempts or refuses the requests that it matches.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.action) && self.action != 'Limit') || (has(self.limits) && self.limits.size() > 0)")
        .message("limits must have at least one limit, because action is Limit: add one, or use action Bypass to let these requests through")
        .field_path(".limits"),
    validation = Rule::new("!has(self.action) || self.action == 'Limit' || !has(self.limits)")
        .message("limits are not valid with action Bypass or Deny, which count nothing: remove limits, or use action Limit")
        .field_path(".limits"),
    validation = Rule::new("!has(self.action) || self.action == 'Limit' || !has(self.key)")
        .message("key is not valid with action Bypass or Deny, which count nothing: remove key, or use action Limit")
        .field_path(".key"),
    validation = Rule::new("!has(self.action) || self.action == 'Limit' || !has(self.overrides)")
        .message("overrides are not valid with action Bypass or Deny, which count nothing: remove overrides, or use action Limit")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.action) || self.action != 'Bypass' || !has(self.onLimit)")
        .message("onLimit is not valid with action Bypass, which refuses nothing: remove onLimit, or use action Limit")
        .field_path(".onLimit"),
    validation = Rule::new("!has(self.action) || self.action != 'Deny' || !has(self.onLimit) || ((!has(self.onLimit.action) || self.onLimit.action == 'Reject') && (!has(self.onLimit.headers) || self.onLimit.headers == 'IETF') && (!has(self.onLimit.headersOn) || self.onLimit.headersOn == 'All'))")
        .message("onLimit can have only status, body, contentType and set with action Deny, which refuses immediately and has no quota: remove the others, or use action Limit")
        .field_path(".onLimit"),
    validation = Rule::new("!has(self.action) || self.action == 'Limit' || !has(self.responseHeaders)")
        .message("responseHeaders are not valid with action Bypass or Deny: remove responseHeaders, or use action Limit; with Deny, onLimit.set sets headers of the refusal")
        .field_path(".responseHeaders"),
    validation = Rule::new("!has(self.action) || self.action == 'Limit' || !has(self.per) || self.per == 'Request'")
        .message("per Message is not valid with action Bypass or Deny, which count nothing: remove per, or use action Limit")
        .field_path(".per"),
    validation = Rule::new("!has(self.action) || self.action == 'Limit' || !has(self.cost)")
        .message("cost is not valid with action Bypass or Deny, which charge nothing: remove cost, or use action Limit")
        .field_path(".cost"),
    validation = Rule::new("(has(self.action) && self.action != 'Limit') || !has(self.overrides) || self.overrides.size() == 0 || (has(self.key) && self.key.size() > 0)")
        .message("overrides need a key: add key, by which requests are counted separately, or remove overrides")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.overrides) || !has(self.key) || self.key.size() == 0 || self.overrides.all(o, o.keys.all(k, k.size() == self.key.size()))")
        .message("overrides must have keys with one value for each part of the rule's key, in the same order")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.overrides) || !has(self.limits) || self.overrides.all(o, o.limits.all(l, self.limits.exists(m, m.name == l.name)))")
        .message("overrides must give the names of the rule's own limits: use a name from limits, or add a limit of that name")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.overrides) || !has(self.limits) || self.limits.all(m, !has(m.strategy) || !(m.strategy in ['FixedWindow', 'SlidingWindowCounter', 'SlidingWindowLog']) || self.overrides.all(o, o.limits.all(l, l.name != m.name || !has(l.burst))))")
        .message("overrides must not have burst for a limit whose strategy is FixedWindow, SlidingWindowCounter or SlidingWindowLog, which save no requests: remove burst")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.overrides) || !has(self.limits) || self.limits.all(m, (has(m.strategy) && m.strategy == 'TokenBucketWithDebt') || self.overrides.all(o, o.limits.all(l, l.name != m.name || !has(l.debt))))")
        .message("overrides must have debt only for limits with strategy TokenBucketWithDebt: remove debt")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.overrides) || !has(self.limits) || self.limits.all(m, !has(m.strategy) || m.strategy != 'SlidingWindowLog' || self.overrides.all(o, o.limits.all(l, l.name != m.name || !has(l.requests) || l.requests <= 1048576)))")
        .message("overrides must have at most 1048576 requests for a limit whose strategy is SlidingWindowLog, which remembers each of them")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.limits) || self.limits.size() == 1 || !self.limits.exists(l, has(l.concurrent))")
        .message("limits must have only one limit if it is concurrent: move the other limits to another rule; a request must pass both rules")
        .field_path(".limits"),
    validation = Rule::new("!has(self.overrides) || !has(self.limits) || self.limits.size() == 0 || self.overrides.all(o, o.limits.all(l, has(l.concurrent) == has(self.limits[0].concurrent)))")
        .message("overrides must have concurrent for a concurrent limit, and requests and per for a rate: use the fields of the rule's limit")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.limits) || self.limits.size() == 0 || !has(self.limits[0].concurrent) || !has(self.per) || self.per != 'Message'")
        .message("concurrent is not valid with per Message, because only requests are in flight: use per Request")
        .field_path(".per"),
    validation = Rule::new("!has(self.limits) || self.limits.size() == 0 || !has(self.limits[0].concurrent) || !has(self.scope) || self.scope == 'Pod'")
        .message("concurrent is not valid with scope Shared or Fleet, because each pod counts its requests in flight: use scope Pod")
        .field_path(".scope"),
    validation = Rule::new("!has(self.limits) || self.limits.size() == 0 || !has(self.limits[0].concurrent) || !has(self.onLimit) || !has(self.onLimit.action) || self.onLimit.action != 'Wait'")
        .message("onLimit must have action Reject with a concurrent limit, which does not know when a request ends: use action Reject")
        .field_path(".onLimit"),
    validation = Rule::new("!has(self.cost) || !(has(self.cost.responseHeader) || has(self.cost.requestBytes) || has(self.cost.responseBytes)) || !has(self.limits) || self.limits.all(l, has(l.strategy) && l.strategy == 'TokenBucketWithDebt') || (has(self.cost.responseHeader) && self.cost.responseHeader.most == 1 && !self.limits.exists(l, has(l.concurrent)))")
        .message("cost is known only later with responseHeader, requestBytes and responseBytes, so every limit must allow debt: use strategy TokenBucketWithDebt for each limit, or responseHeader with most: 1")
        .field_path(".cost"),
    validation = Rule::new("!has(self.per) || self.per != 'Message' || !has(self.cost) || has(self.cost.requests)")
        .message("cost of a message can only be requests, the same for each: a message has no headers and no response")
        .field_path(".cost"),
    validation = Rule::new("!has(self.per) || self.per != 'Message' || !has(self.onLimit) || !has(self.onLimit.action) || self.onLimit.action != 'Wait'")
        .message("onLimit must have action Reject in a rule with per Message: a waiting message would delay all messages after it")
        .field_path(".onLimit"),
    validation = Rule::new("!has(self.per) || self.per != 'Message' || !has(self.onLimit) || !(has(self.onLimit.contentType) || has(self.onLimit.set))")
        .message("onLimit must not have contentType or set in a rule with per Message, which answers no request: remove them, or use per Request")
        .field_path(".onLimit"),
    validation = Rule::new("!has(self.per) || self.per != 'Message' || !has(self.responseHeaders)")
        .message("responseHeaders are not valid with per Message, which answers no request: remove responseHeaders, or use per Request")
        .field_path(".responseHeaders"),
    validation = Rule::new("(has(self.per) && self.per != 'Request') || !has(self.onLimit) || !has(self.onLimit.onMessage)")
        .message("onLimit must have onMessage only in a rule with per Message: remove onMessage, or add per: Message")
        .field_path(".onLimit"),
    validation = Rule::new("!has(self.scope) || self.scope != 'Shared' || has(self.shared)")
        .message("shared is required with scope Shared: name the store with shared.storeRef, or use scope Pod or Fleet")
        .field_path(".shared"),
    validation = Rule::new("(has(self.scope) && self.scope == 'Shared') || !has(self.shared)")
        .message("shared is valid only with scope Shared: remove shared, or add scope: Shared")
        .field_path(".shared"),
    validation = Rule::new("!has(self.scope) || self.scope == 'Pod' || !has(self.action) || self.action == 'Limit'")
        .message("scope Shared or Fleet is not valid with action Bypass or Deny, which count nothing: remove scope and shared, or use action Limit")
        .field_path(".scope"),
    validation = Rule::new("!has(self.scope) || self.scope == 'Pod' || !has(self.per) || self.per != 'Message'")
        .message("scope Shared or Fleet is not valid with per Message: a message cannot wait for the store or the operator; use scope Pod, or per Request")
        .field_path(".scope"),
    validation = Rule::new("!has(self.scope) || self.scope == 'Pod' || !has(self.limits) || self.limits.all(l, !has(l.strategy) || l.strategy != 'SlidingWindowLog' || !has(l.requests) || l.requests <= 8192)")
        .message("limits must have at most 8192 requests with strategy SlidingWindowLog in a rule of scope Shared or Fleet, because the store or the operator remembers each of them: use SlidingWindowCounter for more")
        .field_path(".limits"),
    validation = Rule::new("!has(self.scope) || self.scope == 'Pod' || !has(self.overrides) || !has(self.limits) || self.limits.all(m, !has(m.strategy) || m.strategy != 'SlidingWindowLog' || self.overrides.all(o, o.limits.all(l, l.name != m.name || !has(l.requests) || l.requests <= 8192)))")
        .message("overrides must have at most 8192 requests for a limit whose strategy is SlidingWindowLog in a rule of scope Shared or Fleet: use SlidingWindowCounter for more")
        .field_path(".overrides")
)]
pub struct Rule {
    /// Name of the rule, unique within the policy. A rule that is changed but keeps its name also keeps its counts, unless
    /// its action, its key, its scope or the kind of its limits changes.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = names::label())]
    pub name: String,
    /// Conditions for requests. The rule applies to requests that match at least one entry, or to every request if the
    /// list is empty or absent.
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub matches: Vec<Match>,
    /// Whether the matching requests are limited (Limit), are exempt from all limits of all policies (Bypass), or are
    /// refused (Deny). Deny is evaluated first, then Bypass, then Limit.
    #[serde(default)]
    pub action: Action,
    /// A weaker mode for this rule. A rule cannot have a stronger mode than its policy: in a policy in mode Shadow, no
    /// rule refuses requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    pub mode: Option<Mode>,
    /// Whether the rule counts requests, or the messages of the WebSocket connections that these requests open.
    #[serde(default)]
    pub per: Per,
    /// Other rules of the policy that do not apply to a request if this rule matches one of its descriptors. Valid only in
    /// a policy with `domain`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub replaces: Vec<String>,
    /// The parts of a request by which the rule counts separately: each combination of values has its own count. If the
    /// list is empty or absent, all requests share one count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub key: Vec<KeyPart>,
    /// The limits. A request is admitted only if every limit admits it. If one limit refuses it, no limit is charged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<Limit>,
    /// Other numbers for some keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub overrides: Vec<Override>,
    /// Lets a descriptor contain a limit that replaces the rule's limit. Valid only in a policy with `domain`, and in a
    /// rule with exactly one limit. By default, the rule ignores limits of descriptors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LimitOverride")]
    pub limit_override: Option<LimitOverride>,
    /// The cost of each request, which is charged to every limit. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Cost")]
    pub cost: Option<Cost>,
    /// Treatment of requests beyond a limit. By default, they are refused with status 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnLimit")]
    pub on_limit: Option<OnLimit>,
    /// Ban of keys that the rule refuses again and again. Needs a `key`. Not available for concurrent limits and with
    /// per Message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Ban")]
    pub ban: Option<Ban>,
    /// Headers to set in every response to a request that the rule matches, admitted or refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub response_headers: Vec<ResponseHeader>,
    /// Maximum number of keys that a pod tracks. Further keys are counted separately in an overflow of bounded size.
    /// While the overflow is full, a new key begins with the usage of a removed key, so it can get less than its limit. A
    /// concurrent limit ignores this: it tracks exactly the keys with requests in flight.
    #[serde(default = "default_max_keys")]
    #[schemars(range(min = 1, max = 1_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("maxKeys must not be 0, which never means unlimited: use 1 to 1000000, or remove maxKeys for 65536"))]
    pub max_keys: i32,
    /// Whether each pod counts alone, or all pods count together: in a store, or in the operator.
    #[serde(default)]
    pub scope: Scope,
    /// The store that counts, and the behaviour while it is unreachable. Required with scope Shared, and allowed only
    /// with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SharedRule")]
    pub shared: Option<SharedRule>,
}

fn default_max_keys() -> i32 {
    65_536
}

/// The largest limit that a descriptor can contain. A larger limit is capped at this rate.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = countable())]
pub struct LimitOverride {
    /// Largest number of requests per period.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub max_requests: i64,
    /// Length of the period, 1ms to 24h, such as `500ms`, `1s` or `1h30m`.
    pub per: Period,
}

/// Limits the rate to one request per nanosecond, as for limits.
fn countable() -> kube::core::Rule {
    let syntax = duration::PATTERN;
    kube::core::Rule::new(format!(
        "self.maxRequests <= 1000000 || !self.per.matches('{syntax}') || duration(self.per) >= duration('1s')"
    ))
    .message("maxRequests beyond 1000000 need a per of 1s or more: write the same rate for a longer time")
    .field_path(".maxRequests")
}

/// The treatment of the requests that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Action {
    /// The requests are charged to the limits of the rule.
    #[default]
    Limit,
    /// The requests pass, and no limit of any policy is charged.
    Bypass,
    /// The requests are refused with status 403, and no limit is charged.
    Deny,
}

/// The events that a rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Per {
    /// The rule counts requests. A request that opens a WebSocket connection counts as one request.
    #[default]
    Request,
    /// The rule counts the messages that clients send over WebSocket connections that the matching requests open. The
    /// opening requests are not counted.
    Message,
}

/// The pods that count together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// Each pod counts alone: a limit applies to each pod separately.
    #[default]
    Pod,
    /// All pods count together, in the store that `shared` names: a limit applies to all pods together.
    Shared,
    /// All pods count together, without a store: the operator counts, and a limit applies to all pods together. A pod
    /// that does not reach the operator enforces its share: the limit divided by the number of pods.
    Fleet,
}

/// Other numbers for some keys.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The keys to which this override applies. Each key has one value for each part of the rule's `key`, in the same
    /// order.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 4), inner(length(max = 256))), transform = keys)]
    // Server-side apply does not support a set of lists. The operator checks that no key appears twice in all
    // overrides.
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub keys: Vec<Vec<String>>,
    /// Other numbers for limits of the rule. Limits that are not listed here are unchanged.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<OverrideLimit>,
}

/// Marks the list of parts in a key as atomic, so that server-side apply replaces a key as a whole.
fn keys(schema: &mut Schema) {
    let items = schema.get_mut("items").and_then(|items| items.as_object_mut()).expect("a list of lists");
    items.insert("x-kubernetes-list-type".into(), "atomic".into());
}
