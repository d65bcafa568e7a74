//! The store that counts for all pods whose rules have scope Shared, and the part of a rule that refers to it.

#![expect(clippy::duplicated_attributes, reason = "several printer columns have the same type")]

use std::num::NonZeroU16;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{RateLimitStoreStatus, names};

/// The servers that count the requests of several pods together: Redis, Valkey or Memcached.
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
        description = "Kind of the store",
        json_path = ".status.summary.backend"
    ),
    printcolumn(
        name = "Reached",
        type_ = "string",
        description = "Number of pods that reach the store, of all pods that use it",
        json_path = ".status.summary.reached"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("has(self.redis) != has(self.memcached)")
    .message("exactly one of redis and memcached must be set: redis for Redis and Valkey, memcached for Memcached"))]
pub struct RateLimitStoreSpec {
    /// Redis 6.2 or later, or Valkey. Set either `redis` or `memcached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "RedisStore")]
    pub redis: Option<RedisStore>,
    /// Memcached. Set either `memcached` or `redis`. Agents connect without TLS and without a password.
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
    /// Deployment of the servers: one server (Standalone), Sentinel, or a cluster (Cluster).
    #[serde(default)]
    pub topology: Topology,
    /// The servers as `host:port`: one Redis server, the Sentinel servers, or some servers of a cluster.
    #[schemars(length(min = 1, max = 16), inner(length(max = 261)))]
    #[x_kube(merge_strategy = ListMerge::Atomic, validation = host_and_port("endpoints", "redis.shop.svc:6379"))]
    pub endpoints: Vec<String>,
    /// The name of the primary in Sentinel's configuration. Required with topology Sentinel, and allowed only with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 253))]
    pub master_name: Option<String>,
    /// If set, agents connect with TLS and verify the server's certificate: for the host of the endpoint, and with topology
    /// Sentinel or Cluster also for the hosts that the servers announce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "StoreTls")]
    pub tls: Option<StoreTls>,
    /// A Secret with the keys `username` (optional) and `password`. With TLS, the optional keys `tls.crt` and `tls.key` are
    /// a client certificate and its key in PEM, and `password` is optional. With topology Sentinel, the optional keys
    /// `sentinel-username` and `sentinel-password` are for the Sentinel servers. The kubelet mounts the Secret into the
    /// agent's container; the operator never reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub credentials_secret_ref: Option<SecretRef>,
}

/// The deployment of Redis servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Topology {
    /// One server.
    #[default]
    Standalone,
    /// One primary with replicas. Sentinel servers report which server is the primary.
    Sentinel,
    /// A cluster, which divides the keys among its servers.
    Cluster,
}

/// The verification of a server's certificate.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreTls {
    /// A Secret with the key `ca.crt`: the PEM certificates of the authorities that agents trust. Without it, agents
    /// trust the public authorities of Mozilla's list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "SecretRef")]
    pub ca_secret_ref: Option<SecretRef>,
}

/// A Secret in the namespace of the store.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::object())]
    pub name: String,
}

/// Memcached.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemcachedStore {
    /// The servers as `host:port`. Each key is stored on one server. If the list is changed, some keys move to another
    /// server, and their counts start again.
    #[schemars(length(min = 1, max = 16), inner(length(max = 261)))]
    #[x_kube(merge_strategy = ListMerge::Atomic, validation = host_and_port("servers", "memcached.shop.svc:11211"))]
    pub servers: Vec<String>,
}

/// The ports 1 to 65535.
const PORT: &str = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";

/// A part of a host name between two dots.
const LABEL: &str = "[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?";
/// At least two colons, as in every IPv6 address.
const IPV6: &str = "[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*";

/// A host name can have a final dot, which saves the search through the domains of `resolv.conf`.
fn host_and_port(field: &str, example: &str) -> kube::core::Rule {
    kube::core::Rule::new(format!(
        "self.all(server, server.matches('^({LABEL}([.]{LABEL})*[.]?|\\\\[{IPV6}\\\\]):{PORT}$'))"
    ))
    .message(&*format!(
        "{field} must have a host and a port from 1 to 65535 in each entry, such as {example}, without redis:// before it"
    ))
}

impl RateLimitStoreSpec {
    /// The path and the text of the first server without a host or a valid port. `None` if all servers are valid. A store
    /// that was created with an earlier version of the CRD can have such a server, and agents refuse it.
    #[must_use]
    pub fn invalid_server(&self) -> Option<(String, &str)> {
        let endpoints = self.redis.iter().map(|redis| ("redis.endpoints", &redis.endpoints));
        let servers = self.memcached.iter().map(|memcached| ("memcached.servers", &memcached.servers));
        let mut all = endpoints.chain(servers).flat_map(|(field, list)| {
            list.iter().enumerate().map(move |(index, server)| (format!("{field}[{index}]"), server.as_str()))
        });
        all.find(|(_, server)| {
            let parts = server.rsplit_once(':').map(|(host, port)| (host, port.parse::<NonZeroU16>()));
            !matches!(parts, Some((host, Ok(_))) if !host.is_empty())
        })
    }
}

/// The store that counts for a rule of scope Shared, and the behaviour while the store is unreachable.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedRule {
    /// The `RateLimitStore` that counts, in the policy's namespace.
    pub store_ref: StoreRef,
    /// Behaviour of the rule while a pod does not reach the store.
    #[serde(default)]
    pub on_store_loss: OnStoreLoss,
    /// Number of clusters that have this policy and use the same store. LocalShare divides the limits by this number.
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
    /// Name of the store.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::object())]
    pub name: String,
}

/// The behaviour of a rule while a pod does not reach the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnStoreLoss {
    /// Each pod counts alone, with its share of the limits: the limits divided by the numbers of pods and clusters.
    #[default]
    LocalShare,
    /// The rule admits every request.
    FailOpen,
    /// The rule refuses every request.
    FailClosed,
}
