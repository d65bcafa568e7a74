//! What the operator reports about a policy: what it accepted, which pods enforce it, what they admitted.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Types of the conditions in [`RateLimitPolicyStatus::conditions`] (GEP-713; kstatus for tools that wait).
pub mod condition_types {
    /// The policy is valid and its targets exist.
    pub const ACCEPTED: &str = "Accepted";
    /// Every targeted pod has acknowledged the newest revision.
    pub const ENFORCED: &str = "Enforced";
    /// All targeted pods have what was accepted. Absent if the policy is not accepted.
    pub const PROGRAMMED: &str = "Programmed";
    /// Nothing is left to do: all targeted pods enforce the policy, or it targets none yet.
    pub const READY: &str = "Ready";
    /// The policy is not ready, and needs no action from a user. Absent otherwise.
    pub const RECONCILING: &str = "Reconciling";
    /// Requests can reach the app without passing its agent, or without being limited. Absent otherwise.
    pub const BYPASSABLE: &str = "Bypassable";
    /// The policy is not ready, and a user must act. Absent otherwise.
    pub const STALLED: &str = "Stalled";
    /// Every targeted pod reaches the stores of the policy. Absent if no rule has scope Shared.
    pub const STORE_REACHABLE: &str = "StoreReachable";
    /// On a store: every pod that uses it reaches it.
    pub const REACHABLE: &str = "Reachable";
}

/// The observed state of a policy. Numbers of pods count acknowledgements, not intentions.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitPolicyStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,
    /// `Accepted`, `Programmed`, `Enforced` and `Ready`; `Reconciling`, `Stalled` and `Bypassable` while they hold;
    /// `StoreReachable` if a rule has scope Shared.
    /// Each has the generation that it describes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Identifies the content of the compiled rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 128))]
    pub revision: Option<String>,
    /// The spec that stays in force while a later generation is invalid, even if every operator is replaced meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LastKnownGood", extend("x-kubernetes-map-type" = "atomic"))]
    pub last_known_good: Option<LastKnownGood>,
    /// Which pods enforce the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Enforcement")]
    pub enforcement: Option<Enforcement>,
    /// What the pods admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Traffic")]
    pub traffic: Option<Traffic>,
    /// The status in words, for the columns of `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Summary")]
    pub summary: Option<Summary>,
}

/// The newest generation that was valid. Server-side apply needs one owner for both fields: a status with only one is
/// invalid.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastKnownGood {
    /// Generation of the spec.
    pub generation: i64,
    /// The spec as JSON in one string: a complete policy without a second copy of the schema.
    #[schemars(length(max = LastKnownGood::LONGEST))]
    pub spec: String,
}

impl LastKnownGood {
    /// The longest spec that is kept, in characters. An object with the spec and this copy still fits into etcd.
    pub const LONGEST: usize = 256 * 1024;
}

/// Which pods enforce a policy.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enforcement {
    /// How many pods are targeted.
    #[schemars(range(min = 0))]
    pub pods_targeted: i32,
    /// How many of them have acknowledged the newest revision.
    #[schemars(range(min = 0))]
    pub pods_enforcing: i32,
    /// Up to ten of the others, the worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pod".into()]))]
    pub drifted: Vec<Drift>,
}

/// A targeted pod that does not enforce the newest revision.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// Why, for programs.
    pub reason: DriftReason,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 256))]
    pub message: Option<String>,
}

/// Why a targeted pod does not enforce the newest revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum DriftReason {
    /// Its agent refused the rules.
    Refused,
    /// Its agent does not answer.
    Unreachable,
    /// Its agent enforces an older revision.
    Outdated,
    /// It has no agent.
    NoAgent,
    /// It has no IP address yet.
    Pending,
}

/// What the pods admitted in the last `window`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// The time that the numbers cover, such as `60s`.
    #[schemars(length(max = 28))]
    pub window: String,
    /// Requests that matched and were admitted.
    #[schemars(range(min = 0))]
    pub allowed: i64,
    /// Requests that were refused.
    #[schemars(range(min = 0))]
    pub limited: i64,
    /// Requests that were admitted because of mode Shadow.
    #[schemars(range(min = 0))]
    pub shadow_limited: i64,
    /// Requests that waited for their turn and were admitted. `allowed` includes them.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub waited: i64,
    /// The traffic of each rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub by_rule: Vec<RuleTraffic>,
}

/// What one rule admitted.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleTraffic {
    /// Name of the rule.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Requests that matched and were admitted.
    #[schemars(range(min = 0))]
    pub allowed: i64,
    /// Requests that were refused.
    #[schemars(range(min = 0))]
    pub limited: i64,
    /// Requests that were admitted because of mode Shadow.
    #[schemars(range(min = 0))]
    pub shadow_limited: i64,
    /// Requests that waited for their turn and were admitted. `allowed` includes them.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub waited: i64,
}

/// The status in words, for the columns of `kubectl get`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// How many rules the policy has.
    #[schemars(range(min = 0))]
    pub rules: i32,
    /// Pods that enforce the newest revision, of those targeted: `11/12`.
    #[schemars(length(max = 32))]
    pub enforced: String,
    /// Share of the last minute's requests that was refused: `3.8%`.
    #[schemars(length(max = 16))]
    pub limited: String,
}
