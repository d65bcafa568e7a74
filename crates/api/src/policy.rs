//! The policy: its targets, its mode and its rules.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Deadline, Mode, OnDeadline, PodSelector, RateLimitPolicyStatus, TargetRef};

/// The pods whose requests are limited, and the rules that limit them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "weir.dev",
    version = "v1alpha1",
    kind = "RateLimitPolicy",
    plural = "ratelimitpolicies",
    shortname = "rlp",
    category = "weir",
    category = "gateway-api",
    namespaced,
    status = "RateLimitPolicyStatus",
    derive = "PartialEq",
    doc = "Limits the rate of requests to pods of its namespace.",
    label("gateway.networking.k8s.io/policy", "direct"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(
        name = "Rules",
        type_ = "integer",
        description = "Number of rules in the policy",
        json_path = ".status.summary.rules"
    ),
    printcolumn(
        name = "Accepted",
        type_ = "string",
        description = "Whether the newest generation is valid and its targets exist; if it is not valid, the last valid one is in force",
        json_path = ".status.conditions[?(@.type=='Accepted')].status"
    ),
    printcolumn(
        name = "Enforced",
        type_ = "string",
        description = "Number of pods that enforce the newest revision, of all targeted pods",
        json_path = ".status.summary.enforced"
    ),
    printcolumn(
        name = "Limited",
        type_ = "string",
        description = "Share of requests that were refused in the last minute",
        json_path = ".status.summary.limited"
    ),
    printcolumn(
        name = "Bypass",
        type_ = "string",
        description = "Reason why requests can bypass the agents or the limits",
        json_path = ".status.conditions[?(@.type=='Bypassable')].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.targetRefs) != has(self.selector)")
    .message("exactly one of targetRefs and selector must be set: targetRefs to name workloads or Services, selector to choose pods by label"),
    validation = Rule::new("!has(self.onDeadline) || has(self.deadline)")
        .message("onDeadline is valid only with deadline: add deadline, or remove onDeadline")
        .field_path(".onDeadline"))]
pub struct RateLimitPolicySpec {
    /// The workloads and Services whose pods are limited, in the policy's namespace. Set either `targetRefs` or
    /// `selector`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["kind".into(), "name".into()]))]
    pub target_refs: Vec<TargetRef>,
    /// Selects the pods of the policy's namespace that are limited. Set either `selector` or `targetRefs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PodSelector")]
    pub selector: Option<PodSelector>,
    /// The domain of a rate limit service. If it is set, the rules limit the descriptors of this domain that a proxy
    /// such as Envoy sends to `weir-agent rls`, and the targets are the pods of this service. If it is absent, the rules
    /// limit the HTTP requests to the targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    pub domain: Option<String>,
    /// Whether requests beyond a limit are refused (Enforce), only counted (Shadow), or not counted (Disabled).
    #[serde(default)]
    pub mode: Mode,
    /// The rules. Rules with action Deny are evaluated first, then rules with action Bypass. Then a request is charged
    /// to every rule with action Limit that matches it.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub rules: Vec<crate::Rule>, // the derive macro brings kube's `Rule` into scope
    /// Maximum total time of a request, 1ms to 1h, including the wait for its turn and the app's response. After this
    /// time, the client receives the response of `onDeadline`. Applies only to requests that match a rule of this policy
    /// that enforces limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Deadline")]
    pub deadline: Option<Deadline>,
    /// The response to requests that exceed `deadline`. By default, it has status 504.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnDeadline")]
    pub on_deadline: Option<OnDeadline>,
}
