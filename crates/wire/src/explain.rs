//! `POST /v1/explain`: what would become of a request, without charging anything.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{Mode, Per};

/// A request as a client would send it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainRequest {
    /// Upper case.
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

/// What would become of the request now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainReply {
    /// The outcome.
    pub decision: Decision,
    /// Every rule that matches, of every policy that is not disabled, in their order.
    pub rules: Vec<ExplainedRule>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// No rule refuses it, or none matches.
    Allow,
    /// It is let through once its turn comes.
    Wait,
    /// It is refused.
    Limit,
    /// A rule lets it pass without looking at any limit.
    Bypass,
}

/// What one matching rule says to the request by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedRule {
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy.
    pub policy: String,
    /// The policy's mode: a rule of a policy in shadow mode has no say in the decision.
    pub mode: Mode,
    /// Name of the rule.
    pub rule: String,
    /// What the rule counts.
    #[serde(default, skip_serializing_if = "Per::is_request")]
    pub per: Per,
    /// What the rule would decide.
    pub decision: Decision,
    /// How long the request would wait, with [`Decision::Wait`], or when to come back, with [`Decision::Limit`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_millis: Option<u64>,
    /// The key that the request is counted by: one value for each part, none where the request lacks it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<Option<String>>,
    /// Which of the rule's overrides applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_index: Option<usize>,
    /// What it would take from each limit.
    pub cost: u64,
    /// The limit that refuses, or else the one with the least left; none for a bypass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ExplainedLimit>,
}

/// A limit as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedLimit {
    /// Name of the limit.
    pub name: String,
    /// How many requests of cost 1 it would let through at once.
    pub remaining: u64,
    /// Until it is as good as new, if nobody else comes.
    pub reset_after_millis: u64,
}
