//! `POST /v1/explain`: reports what would happen to a request, without charging anything.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Mode, Per};

/// A request as a client would send it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainRequest {
    /// Method, in upper case.
    #[serde(default = "get")]
    pub method: String,
    /// Path and query, such as `/api/orders?page=2`.
    pub target: String,
    /// Names and values, in order; `host` is one of them.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// The address that the connection comes from; loopback if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<IpAddr>,
}

fn get() -> String {
    "GET".to_owned()
}

/// What would happen to the request now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainReply {
    /// The outcome.
    pub decision: Decision,
    /// Every rule that matches and is not disabled, of every policy, in their order.
    pub rules: Vec<ExplainedRule>,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// No rule refuses it, or none matches.
    Allow,
    /// It is admitted when its turn comes.
    Wait,
    /// It is refused by a limit.
    Limit,
    /// A rule with action Deny refuses it.
    Deny,
    /// A rule with action Bypass lets it pass without any limit.
    Bypass,
}

/// What one matching rule decides for the request by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedRule {
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy.
    pub policy: String,
    /// The rule's mode. Rules in shadow mode do not affect the decision.
    pub mode: Mode,
    /// Name of the rule.
    pub rule: String,
    /// What the rule counts.
    #[serde(default, skip_serializing_if = "Per::is_request")]
    pub per: Per,
    /// What the rule would decide.
    pub decision: Decision,
    /// How long the request would wait, with [`Decision::Wait`], or when to retry, with [`Decision::Limit`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_millis: Option<u64>,
    /// The key that the request is counted by: one value per part, none for a part that the request lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<Option<String>>,
    /// Which of the rule's overrides applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_index: Option<usize>,
    /// What the request would take from each limit.
    pub cost: u64,
    /// The limit that refuses, or else the limit with the least left. None for a rule without limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ExplainedLimit>,
    /// Where the numbers of a shared rule come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The state of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedLimit {
    /// Name of the limit.
    pub name: String,
    /// How many requests of cost 1 it would admit at once.
    pub remaining: u64,
    /// How long until the limit is full again if no other request comes.
    pub reset_after_millis: u64,
}
