//! The status of a policy: its conditions, the pods that enforce it, and their traffic.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The types of the conditions in [`RateLimitPolicyStatus::conditions`] (GEP-713, and kstatus for tools that wait).
pub mod condition_types {
    /// The policy is valid and its targets exist.
    pub const ACCEPTED: &str = "Accepted";
    /// Every targeted pod has acknowledged the newest revision.
    pub const ENFORCED: &str = "Enforced";
    /// All targeted pods enforce the accepted spec. Absent if the policy is not accepted.
    pub const PROGRAMMED: &str = "Programmed";
    /// All targeted pods enforce the policy, or the policy targets no pods yet.
    pub const READY: &str = "Ready";
    /// The policy is not ready, and needs no action from a user. Absent otherwise.
    pub const RECONCILING: &str = "Reconciling";
    /// Requests can reach the app without passing its agent, or without being limited. Absent otherwise.
    pub const BYPASSABLE: &str = "Bypassable";
    /// The policy is not ready, and a user must act. Absent otherwise.
    pub const STALLED: &str = "Stalled";
    /// Every targeted pod reaches the stores of the policy. Absent if no rule has scope Shared.
    pub const STORE_REACHABLE: &str = "StoreReachable";
    /// Some targeted pods do not reach the operator, which counts for rules of scope Fleet. These pods enforce their
    /// share of the limits. Or limits count as used up, because a new leader does not know all counts. Absent if no rule
    /// has scope Fleet.
    pub const FLEET_DEGRADED: &str = "FleetDegraded";
    /// A condition of a store: every pod that uses the store reaches it.
    pub const REACHABLE: &str = "Reachable";
}

/// The observed state of a policy. A pod counts as enforcing only after its agent has acknowledged the revision.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitPolicyStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,
    /// `Accepted`, `Programmed`, `Enforced` and `Ready`; `Reconciling`, `Stalled` and `Bypassable` while they are true;
    /// `StoreReachable` if a rule has scope Shared; `FleetDegraded` if a rule has scope Fleet. Each condition contains
    /// the generation that it describes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // There is room for conditions of later versions, whose operators can run with this definition.
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Identifies the content of the compiled rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 128))]
    pub revision: Option<String>,
    /// The spec that stays in force while a later generation is invalid, even if the operator restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LastKnownGood", extend("x-kubernetes-map-type" = "atomic"))]
    pub last_known_good: Option<LastKnownGood>,
    /// The numbers of pods that are targeted and that enforce the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Enforcement")]
    pub enforcement: Option<Enforcement>,
    /// The requests that the pods admitted and refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Traffic")]
    pub traffic: Option<Traffic>,
    /// How the operator counts for the rules of scope Fleet. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Fleet")]
    pub fleet: Option<Fleet>,
    /// The status in words, for the columns of `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Summary")]
    pub summary: Option<Summary>,
}

/// The newest valid generation. Server-side apply needs one owner for both fields, because a status with only one field
/// is invalid.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastKnownGood {
    /// Generation of the spec.
    pub generation: i64,
    /// The complete spec as JSON in one string.
    #[schemars(length(max = LastKnownGood::LONGEST))]
    pub spec: String,
}

impl LastKnownGood {
    /// The maximum length of a kept spec, in characters. An object with its spec and this copy still fits into etcd.
    pub const LONGEST: usize = 256 * 1024;
}

/// The numbers of pods that are targeted and that enforce a policy.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Enforcement {
    /// Number of targeted pods.
    #[schemars(range(min = 0))]
    pub pods_targeted: i32,
    /// Number of targeted pods that have acknowledged the newest revision.
    #[schemars(range(min = 0))]
    pub pods_enforcing: i32,
    /// Up to ten targeted pods that do not enforce the newest revision, the worst first.
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
    /// Reason why the pod does not enforce the newest revision, for programs: `Refused`, `Unreachable`, `Outdated`,
    /// `NoAgent` or `Pending`. Later versions can have other reasons.
    // An enum would refuse the statuses of a later operator that runs with this definition.
    #[schemars(with = "String", length(max = 64))]
    pub reason: DriftReason,
    /// Explanation of the reason, for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 256))]
    pub message: Option<String>,
}

/// The reason why a targeted pod does not enforce the newest revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DriftReason {
    /// The pod's agent refused the rules.
    Refused,
    /// The pod's agent does not answer.
    Unreachable,
    /// The pod's agent enforces an older revision.
    Outdated,
    /// The pod has no agent.
    NoAgent,
    /// The pod has no IP address yet.
    Pending,
}

/// The requests of all targeted pods in the last `window`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// The time that the numbers cover, such as `60s`.
    #[schemars(length(max = 28))]
    pub window: String,
    /// Number of requests that matched a rule and were admitted.
    #[schemars(range(min = 0))]
    pub allowed: i64,
    /// Number of requests that were refused.
    #[schemars(range(min = 0))]
    pub limited: i64,
    /// Number of requests beyond a limit that were admitted because of mode Shadow.
    #[schemars(range(min = 0))]
    pub shadow_limited: i64,
    /// Number of requests that waited for their turn and were admitted. `allowed` includes them.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub waited: i64,
    /// The traffic of each rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub by_rule: Vec<RuleTraffic>,
}

/// The requests of one rule.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleTraffic {
    /// Name of the rule.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Number of requests that the rule matched and admitted.
    #[schemars(range(min = 0))]
    pub allowed: i64,
    /// Number of requests that the rule refused.
    #[schemars(range(min = 0))]
    pub limited: i64,
    /// Number of requests beyond a limit that were admitted because of mode Shadow.
    #[schemars(range(min = 0))]
    pub shadow_limited: i64,
    /// Number of requests that waited for their turn and were admitted. `allowed` includes them.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub waited: i64,
}

/// How the operator counts for the rules of scope Fleet.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fleet {
    /// Number of pods for which the operator does not count, because their agents are cut off or have just started. Such
    /// an agent admits requests up to its share: the limits divided by the number of pods.
    #[schemars(range(min = 0))]
    pub pods_with_share: i32,
    /// The rules of scope Fleet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub by_rule: Vec<FleetRule>,
}

/// How the operator counts for one rule of scope Fleet.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetRule {
    /// Name of the rule.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Number of requests that the rule admitted or refused in the time `traffic.window`. A request that another rule
    /// refuses does not count.
    #[schemars(range(min = 0))]
    pub demand: i64,
    /// Number of keys, such as clients, that the operator counts. Keys at full credit are forgotten.
    #[schemars(range(min = 0))]
    pub keys: i64,
    /// The limits of the rule. Overrides are not included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<FleetLimit>,
}

/// A limit of a rule of scope Fleet. The numbers are requests per period, of each key.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetLimit {
    /// Name of the limit.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Number of requests that all pods together admit.
    #[schemars(range(min = 0))]
    pub limit: i64,
    /// Number of requests that the pods with a share can admit together. It exceeds the limit only if the limit has
    /// fewer requests than there are pods, because a share has at least one. The share of a `SlidingWindowLog` begins
    /// half a period after the pod was cut off, and this number contains it from the beginning.
    #[schemars(range(min = 0))]
    pub shares_out: i64,
    /// Number of requests that the operator keeps free for the pods with a share: `sharesOut`, at most the limit.
    #[schemars(range(min = 0))]
    pub reserve: i64,
}

/// The status in words, for the columns of `kubectl get`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of rules in the policy.
    #[schemars(range(min = 0))]
    pub rules: i32,
    /// Number of pods that enforce the newest revision, of all targeted pods: `11/12`.
    #[schemars(length(max = 32))]
    pub enforced: String,
    /// Share of requests that were refused in the last minute: `3.8%`.
    #[schemars(length(max = 16))]
    pub limited: String,
}
