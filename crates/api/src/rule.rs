//! One rule: which requests, told apart by what, against which limits, and what a refusal looks like.

use std::borrow::Cow;

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::{Limit, Match, OverrideLimit, names};

/// Which requests are limited, told apart by what, and how far.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.action != 'Limit' || (has(self.limits) && self.limits.size() > 0)")
        .message("limits must have at least one limit, because action is Limit: add one, or use action Bypass to let these requests through")
        .field_path(".limits"),
    validation = Rule::new("self.action != 'Bypass' || !has(self.limits)")
        .message("limits do not go with action Bypass, which limits nothing: remove limits, or use action Limit")
        .field_path(".limits"),
    validation = Rule::new("self.action != 'Bypass' || !has(self.key)")
        .message("key does not go with action Bypass, which counts nothing: remove key, or use action Limit")
        .field_path(".key"),
    validation = Rule::new("self.action != 'Bypass' || !has(self.overrides)")
        .message("overrides do not go with action Bypass, which limits nothing: remove overrides, or use action Limit")
        .field_path(".overrides"),
    validation = Rule::new("self.action != 'Bypass' || !has(self.onLimit)")
        .message("onLimit does not go with action Bypass, which refuses nothing: remove onLimit, or use action Limit")
        .field_path(".onLimit"),
    validation = Rule::new("self.action != 'Limit' || !has(self.overrides) || self.overrides.size() == 0 || (has(self.key) && self.key.size() > 0)")
        .message("overrides need a key: add key to say what requests are told apart by, or remove overrides")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.overrides) || !has(self.key) || self.key.size() == 0 || self.overrides.all(o, o.keys.all(k, k.size() == self.key.size()))")
        .message("overrides must have in each of their keys one value for each part of the rule's key, in the same order")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.overrides) || !has(self.limits) || self.overrides.all(o, o.limits.all(l, self.limits.exists(m, m.name == l.name)))")
        .message("overrides must give the names of the rule's own limits: use a name from limits, or add a limit of that name")
        .field_path(".overrides"),
    validation = Rule::new("!has(self.overrides) || !has(self.limits) || self.overrides.all(o, o.limits.all(l, !has(l.burst) || !self.limits.exists(m, m.name == l.name && m.strategy == 'FixedWindow')))")
        .message("overrides must not have burst for a limit whose strategy is FixedWindow, which has no burst: leave burst out")
        .field_path(".overrides")
)]
pub struct Rule {
    /// Name, unique within the policy. Counters belong to it: a rule that keeps its name keeps its count.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = names::label())]
    pub name: String,
    /// Which requests the rule is about: any entry may match. Every request, if empty or absent.
    #[serde(default, rename = "match", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub matches: Vec<Match>,
    /// Whether these requests are limited, or let through without looking at any limit of any policy.
    #[serde(default)]
    pub action: Action,
    /// What requests are told apart by: each combination of values has its own count. All requests share one count, if
    /// empty or absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub key: Vec<KeyPart>,
    /// All must let a request through; a refusal by one charges none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<Limit>,
    /// Other numbers for some keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub overrides: Vec<Override>,
    /// What the client gets instead of an answer, once a limit is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnLimit")]
    pub on_limit: Option<OnLimit>,
    /// How many keys a pod tracks at most; those beyond share one count.
    #[serde(default = "default_max_keys")]
    #[schemars(range(min = 1, max = 1_000_000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("maxKeys must not be 0, which never means unlimited: use 1 to 1000000, or leave maxKeys out for 65536"))]
    pub max_keys: i32,
    /// Where requests are counted.
    #[serde(default)]
    pub scope: Scope,
}

fn default_max_keys() -> i32 {
    65_536
}

/// What a rule does with the requests it matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Action {
    /// Charge the limits.
    #[default]
    Limit,
    /// Let through; no limit of any policy is charged.
    Bypass,
}

/// Where requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Scope {
    /// Each pod counts by itself: a limit is a limit for each pod.
    #[default]
    Pod,
}

/// One part of what requests are told apart by. In YAML: either `header: x-api-key` or `clientIP: {}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyPart {
    /// Value of the header of this name; requests without it share one count.
    #[serde(rename = "header")]
    Header(String),
    /// Address of the client.
    #[serde(rename = "clientIP")]
    ClientIp(ClientIp),
}

/// A structural schema has no variants: it is written as an object with two optional fields, of which a CEL rule asks
/// for exactly one.
#[derive(KubeSchema, Serialize)]
#[serde(rename = "KeyPart")]
#[x_kube(validation = Rule::new("has(self.header) != has(self.clientIP)")
    .message("key parts must have exactly one of header and clientIP: write two parts to tell requests apart by both"))]
struct KeyPartSchema {
    /// Value of the header of this name; requests without it share one count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::header("header"))]
    header: Option<String>,
    /// Address of the client.
    #[serde(default, rename = "clientIP", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ClientIp")]
    client_ip: Option<ClientIp>,
}

impl JsonSchema for KeyPart {
    fn schema_name() -> Cow<'static, str> {
        "KeyPart".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = KeyPartSchema::json_schema(generator);
        schema.insert("description".into(), "One part of what requests are told apart by.".into());
        schema
    }
}

/// How the address of the client is found, and how much of it counts.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientIp {
    /// How many proxies in front of the pod append to `X-Forwarded-For` and are trusted. With 0 the peer's address counts.
    #[serde(default)]
    #[schemars(range(min = 0, max = 10))]
    pub trusted_hops: i32,
    /// IPv6 clients are told apart by this many leading bits.
    #[serde(default = "default_ipv6_prefix", rename = "ipv6Prefix")]
    #[schemars(range(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("ipv6Prefix must not be 0, which would make all IPv6 clients one: leave it out for 64, or use 1 to 128"))]
    pub ipv6_prefix: i32,
}

fn default_ipv6_prefix() -> i32 {
    64
}

impl Default for ClientIp {
    fn default() -> Self {
        Self { trusted_hops: 0, ipv6_prefix: default_ipv6_prefix() }
    }
}

/// Other numbers for some keys.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The keys meant: each has one value for each part of the rule's `key`, in the same order.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 4), inner(length(max = 256))), transform = keys)]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub keys: Vec<Vec<String>>,
    /// Other numbers for limits of the rule; those not named here stay.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<OverrideLimit>,
}

/// Keys are compared whole.
fn keys(schema: &mut Schema) {
    let items = schema.get_mut("items").and_then(|items| items.as_object_mut()).expect("a list of lists");
    items.insert("x-kubernetes-list-type".into(), "atomic".into());
}

/// What the client gets instead of an answer.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnLimit {
    /// What is done with a request beyond a limit.
    #[serde(default)]
    pub action: OnLimitAction,
    /// HTTP status of the refusal.
    #[serde(default = "default_status")]
    #[schemars(range(min = 400, max = 599))]
    pub status: i32,
    /// Which fields tell the client about its quota. `Retry-After` is sent with every refusal.
    #[serde(default)]
    pub headers: HeaderStyle,
}

fn default_status() -> i32 {
    429
}

impl Default for OnLimit {
    fn default() -> Self {
        Self { action: OnLimitAction::default(), status: default_status(), headers: HeaderStyle::default() }
    }
}

/// What is done with a request beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnLimitAction {
    /// It is refused at once.
    #[default]
    Reject,
}

/// Which fields tell the client about its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers).
    #[default]
    #[serde(rename = "IETF")]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    Legacy,
    /// Both of them.
    Both,
    /// Neither of them.
    None,
}
