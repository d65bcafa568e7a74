//! The policy as a whole: its targets, its mode and its rules.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::{Deadline, Mode, PodSelector, RateLimitPolicyStatus, TargetRef};

/// Which requests to which pods are limited, and how.
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
        description = "How many rules the policy has",
        json_path = ".status.summary.rules"
    ),
    printcolumn(
        name = "Enforced",
        type_ = "string",
        description = "How many of the targeted pods enforce the newest revision",
        json_path = ".status.summary.enforced"
    ),
    printcolumn(
        name = "Limited",
        type_ = "string",
        description = "Share of the last minute's requests that was refused",
        json_path = ".status.summary.limited"
    ),
    printcolumn(
        name = "Bypass",
        type_ = "string",
        description = "What lets requests past the agents or past the limits",
        json_path = ".status.conditions[?(@.type=='Bypassable')].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.targetRefs) != has(self.selector)")
    .message("exactly one of targetRefs and selector must be set: targetRefs to name workloads or Services, selector to choose pods by label"))]
pub struct RateLimitPolicySpec {
    /// The workloads and Services whose pods are limited, all in the policy's namespace. Set either this or `selector`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["kind".into(), "name".into()]))]
    pub target_refs: Vec<TargetRef>,
    /// Chooses which pods of the policy's namespace are limited. Set either this or `targetRefs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PodSelector")]
    pub selector: Option<PodSelector>,
    /// What happens to requests beyond a limit.
    #[serde(default)]
    pub mode: Mode,
    /// What is limited. Rules with action Bypass are evaluated first; of the others, every rule that matches is
    /// charged.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub rules: Vec<crate::Rule>, // the derive brings kube's own `Rule` into scope
    /// How long a request may take, including the wait for its turn and the app's answer, 1ms to 1h. After that the
    /// client receives 504.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Deadline")]
    pub deadline: Option<Deadline>,
}
