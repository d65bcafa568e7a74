//! What the operator reports about a store: which pods reach it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The observed state of a store, as the agents of the pods that use it report it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitStoreStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i64")]
    pub observed_generation: Option<i64>,
    /// `Reachable`: whether every pod that uses the store reaches it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// How many pods use the store: their agents have reported it.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub pods_using: i32,
    /// How many of them reach it.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub pods_reaching: i32,
    /// Up to ten of the others, the one that has been cut off for longest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["pod".into()]))]
    pub cut_off: Vec<CutOff>,
    /// The status in words, for the columns of `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "StoreSummary")]
    pub summary: Option<StoreSummary>,
}

/// A pod that does not reach the store.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CutOff {
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// Since when, by the pod's clock.
    pub since: Time,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 256))]
    pub message: Option<String>,
}

/// The status in words, for the columns of `kubectl get`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSummary {
    /// The kind of store: `Redis Sentinel`.
    #[schemars(length(max = 32))]
    pub backend: String,
    /// Pods that reach the store, of those that use it: `11/12`.
    #[schemars(length(max = 32))]
    pub reached: String,
}
