//! `POST /v1/explain`: reports the decision that a request would get, and charges nothing.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Mode, Per};

/// A request as a client would send it, or a descriptor as a proxy would send it to the rate limit service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainRequest {
    /// The method, in upper case.
    #[serde(default = "get")]
    pub method: String,
    /// The path and query, such as `/api/orders?page=2`. Empty if `descriptor` is set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// The names and values of all headers, in order, including `host`.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// The address from which the connection arrives. Loopback if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
    /// A descriptor, which the rules of its domain match. None for a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<ExplainDescriptor>,
}

/// A descriptor of a request to the rate limit service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainDescriptor {
    /// The domain.
    pub domain: String,
    /// The keys and values of its entries, in order.
    pub entries: Vec<(String, String)>,
    /// The units that the request charges to each matching rule.
    #[serde(default = "one")]
    pub hits: u32,
    /// Another limit, for the rules that accept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ExplainDescriptorLimit>,
}

/// A limit that a descriptor contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainDescriptorLimit {
    /// The number of requests per period, at least 1.
    pub requests: u64,
    /// The period in milliseconds, at least 1.
    pub period_millis: u64,
}

fn one() -> u32 {
    1
}

fn get() -> String {
    "GET".to_owned()
}

/// The decision that the request would get now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainReply {
    /// The outcome.
    pub decision: Decision,
    /// All matching rules that are not disabled, of all policies, in order.
    pub rules: Vec<ExplainedRule>,
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// No rule refuses the request, or no rule matches.
    Allow,
    /// The request is admitted when its turn comes.
    Wait,
    /// A limit refuses the request.
    Limit,
    /// A rule with action Deny refuses the request.
    Deny,
    /// A rule with action Bypass lets the request pass without any limit.
    Bypass,
}

/// The decision of one matching rule alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedRule {
    /// The namespace of the policy.
    pub namespace: String,
    /// The name of the policy.
    pub policy: String,
    /// The rule's mode. Rules in shadow mode do not affect the decision.
    pub mode: Mode,
    /// The name of the rule.
    pub rule: String,
    /// The unit that the rule counts: requests or messages.
    #[serde(default, skip_serializing_if = "Per::is_request")]
    pub per: Per,
    /// The decision of the rule.
    pub decision: Decision,
    /// The time that the request would wait, with [`Decision::Wait`], or the time after which to retry, with
    /// [`Decision::Limit`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_millis: Option<u64>,
    /// Whether the rule has banned the key of the request. The ban ends after `after_millis`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub banned: bool,
    /// The key of the request: one value for each part, and `None` for a part that the request does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<Option<String>>,
    /// The index of the rule's override that applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_index: Option<usize>,
    /// The units that the request would take from each limit.
    pub cost: u64,
    /// The limit that refuses, or otherwise the limit with the fewest remaining requests. None for a rule without
    /// limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ExplainedLimit>,
    /// The source of the numbers of a shared rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The state of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedLimit {
    /// The name of the limit.
    pub name: String,
    /// The number of requests of cost 1 that the limit would admit now.
    pub remaining: u64,
    /// The time until the limit is at full credit, if no other request arrives.
    pub reset_after_millis: u64,
}
