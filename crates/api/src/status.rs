//! What the operator reports of a policy: what was accepted, which pods enforce it, what they let through.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Types of the conditions in [`RateLimitPolicyStatus::conditions`] (GEP-713, and kstatus for tools that wait).
pub mod condition_types {
    /// The policy is valid and its targets exist.
    pub const ACCEPTED: &str = "Accepted";
    /// Every targeted pod has acknowledged the newest revision.
    pub const ENFORCED: &str = "Enforced";
    /// What is accepted is in all targeted pods; absent of a policy that is not accepted.
    pub const PROGRAMMED: &str = "Programmed";
    /// Nothing is left to do: all targeted pods enforce the policy, or there are none yet.
    pub const READY: &str = "Ready";
    /// It is not ready and goes on by itself; absent otherwise.
    pub const RECONCILING: &str = "Reconciling";
    /// Requests can come to the app past its agent, or past the limits; absent otherwise.
    pub const BYPASSABLE: &str = "Bypassable";
    /// It is not ready, and somebody has to do something; absent otherwise.
    pub const STALLED: &str = "Stalled";
}

/// What is known of a policy. Numbers of pods are what the pods acknowledged, never what is intended.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitPolicyStatus {
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,
    /// `Accepted`, `Programmed`, `Enforced` and `Ready`, and `Reconciling`, `Stalled` or `Bypassable` while they hold; each with the generation it
    /// is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Names the content of the compiled rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 128))]
    pub revision: Option<String>,
    /// What stays in force while a later generation is invalid, also when every operator is replaced meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LastKnownGood", extend("x-kubernetes-map-type" = "atomic"))]
    pub last_known_good: Option<LastKnownGood>,
    /// Which pods enforce the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Enforcement")]
    pub enforcement: Option<Enforcement>,
    /// What the pods let through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Traffic")]
    pub traffic: Option<Traffic>,
    /// The same in words, for the columns of `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Summary")]
    pub summary: Option<Summary>,
}

/// The newest generation that was valid. Whoever writes one of its fields owns both: half of it would make no status.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastKnownGood {
    /// Its number.
    pub generation: i64,
    /// Its spec, as JSON in one text: a policy in full, which must not cost a second schema.
    #[schemars(length(max = LastKnownGood::LONGEST))]
    pub spec: String,
}

impl LastKnownGood {
    /// The longest spec that is kept, in characters. With the spec itself beside it, a policy still fits etcd.
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
    /// The worst ten of the others.
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
    /// It has no address yet.
    Pending,
}

/// What the pods let through in the last `window`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// What the numbers are about, such as `60s`.
    #[schemars(length(max = 28))]
    pub window: String,
    /// Requests that matched and were let through.
    #[schemars(range(min = 0))]
    pub allowed: i64,
    /// Requests that were refused.
    #[schemars(range(min = 0))]
    pub limited: i64,
    /// Requests that were let through because of mode Shadow.
    #[schemars(range(min = 0))]
    pub shadow_limited: i64,
    /// Requests that were let through after they had waited for their turn; they are among those of `allowed`.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub waited: i64,
    /// The same for each rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub by_rule: Vec<RuleTraffic>,
}

/// What one rule let through.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleTraffic {
    /// Name of the rule.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Requests that matched and were let through.
    #[schemars(range(min = 0))]
    pub allowed: i64,
    /// Requests that were refused.
    #[schemars(range(min = 0))]
    pub limited: i64,
    /// Requests that were let through because of mode Shadow.
    #[schemars(range(min = 0))]
    pub shadow_limited: i64,
    /// Requests that were let through after they had waited for their turn; they are among those of `allowed`.
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
