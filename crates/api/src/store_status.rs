//! The status of a store: the pods that reach it.

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
    /// The condition `Reachable`: whether every pod that uses the store reaches it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Number of pods that use the store, as their agents report.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub pods_using: i32,
    /// Number of pods that use the store and reach it.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub pods_reaching: i32,
    /// Up to ten pods that use the store but do not reach it. The pod that lost the store first is listed first.
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
    /// Time since which the pod does not reach the store, by the pod's clock.
    pub since: Time,
    /// Reason why the pod does not reach the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 256))]
    pub message: Option<String>,
}

/// The status in words, for the columns of `kubectl get`.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSummary {
    /// Kind of the store, such as `Redis Sentinel`.
    #[schemars(length(max = 32))]
    pub backend: String,
    /// Number of pods that reach the store, of all pods that use it: `11/12`.
    #[schemars(length(max = 32))]
    pub reached: String,
}
