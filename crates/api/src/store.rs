//! The store that counts for all pods whose rules have scope Shared, and what such a rule says about it.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{RateLimitStoreStatus, names};

/// Where requests are counted for several pods: Redis, Valkey or Memcached.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "weir.dev",
    version = "v1alpha1",
    kind = "RateLimitStore",
    plural = "ratelimitstores",
    shortname = "rls",
    category = "weir",
    namespaced,
    status = "RateLimitStoreStatus",
    derive = "PartialEq",
    doc = "A store that counts for all pods whose rules have scope Shared. Policies of its namespace can use it.",
    label("app.kubernetes.io/part-of", "weir"),
    printcolumn(
        name = "Backend",
        type_ = "string",
        description = "What kind of store it is",
        json_path = ".status.summary.backend"
    ),
    printcolumn(
        name = "Reached",
        type_ = "string",
        description = "How many of the pods that use the store reach it",
        json_path = ".status.summary.reached"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("has(self.redis) != has(self.memcached)")
    .message("exactly one of redis and memcached must be set: redis for Redis and Valkey, memcached for Memcached"))]
pub struct RateLimitStoreSpec {
    /// Redis 6.2 or later, or Valkey. Set either this or `memcached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RedisStore")]
    pub redis: Option<RedisStore>,
    /// Memcached. Set either this or `redis`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MemcachedStore")]
    pub memcached: Option<MemcachedStore>,
}

/// Redis or Valkey.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.topology != 'Standalone' || self.endpoints.size() <= 1")
        .message("endpoints must be one server with topology Standalone: remove the others, or use topology Sentinel or Cluster")
        .field_path(".endpoints"),
    validation = Rule::new("self.topology != 'Sentinel' || has(self.masterName)")
        .message("masterName is required with topology Sentinel: write the name by which Sentinel knows the primary, such as mymaster")
        .field_path(".masterName"),
    validation = Rule::new("self.topology == 'Sentinel' || !has(self.masterName)")
        .message("masterName is valid only with topology Sentinel: remove masterName, or use that topology")
        .field_path(".masterName")
)]
pub struct RedisStore {
    /// How the servers work together.
    #[serde(default)]
    pub topology: Topology,
    /// The servers as `host:port`: one server, those of Sentinel, or some of a cluster.
    #[schemars(length(min = 1, max = 16), inner(length(max = 261)))]
    #[x_kube(merge_strategy = ListMerge::Atomic, validation = host_and_port("endpoints", "redis.shop.svc:6379"))]
    pub endpoints: Vec<String>,
    /// The name by which Sentinel knows the primary. Only with topology Sentinel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253))]
    pub master_name: Option<String>,
    /// If set, agents connect with TLS and verify the server's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "StoreTls")]
    pub tls: Option<StoreTls>,
    /// A Secret with the keys `username` (optional) and `password`. The kubelet mounts it into the agent's container;
    /// the operator never reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub credentials_secret_ref: Option<SecretRef>,
}

/// How servers of Redis work together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Topology {
    /// One server.
    #[default]
    Standalone,
    /// Sentinel knows which server is the primary.
    Sentinel,
    /// A cluster, which divides the keys among its servers.
    Cluster,
}

/// How agents verify the certificate of a server.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreTls {
    /// A Secret with the key `ca.crt`: the certificates of authorities in PEM that agents trust. Without it they trust
    /// the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub ca_secret_ref: Option<SecretRef>,
}

/// A Secret in the namespace of the store.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::object())]
    pub name: String,
}

/// Memcached.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemcachedStore {
    /// The servers as `host:port`. Each key belongs to one of them, so a changed list moves keys, and their counters
    /// begin again.
    #[schemars(length(min = 1, max = 16), inner(length(max = 261)))]
    #[x_kube(merge_strategy = ListMerge::Atomic, validation = host_and_port("servers", "memcached.shop.svc:11211"))]
    pub servers: Vec<String>,
}

fn host_and_port(field: &str, example: &str) -> kube::core::Rule {
    kube::core::Rule::new(
        "self.all(server, server.matches('^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\\\\[[0-9A-Fa-f:.]+\\\\]):[1-9][0-9]{0,4}$'))",
    )
    .message(&*format!("{field} must have a host and a port in each entry, such as {example}, without redis:// before it"))
}

/// How a rule of scope Shared counts.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedRule {
    /// The `RateLimitStore` that counts, in the policy's namespace.
    pub store_ref: StoreRef,
    /// What happens while a pod does not reach the store.
    #[serde(default)]
    pub on_store_loss: OnStoreLoss,
    /// How many clusters have this policy and use the same store. LocalShare divides by it.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    #[x_kube(validation = Rule::new("self != 0")
        .message("clusters must not be 0: this cluster is one of them, so remove clusters or use 1 to 1000"))]
    pub clusters: i32,
}

fn one() -> i32 {
    1
}

/// A `RateLimitStore` in the policy's namespace.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::object())]
    pub name: String,
}

/// What happens while a pod does not reach the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnStoreLoss {
    /// Each pod counts alone, with its part of the limits: the limits divided by the number of pods and clusters.
    #[default]
    LocalShare,
    /// The rule admits every request.
    FailOpen,
    /// The rule refuses every request.
    FailClosed,
}
