//! Stores that count for several agents, and what a rule needs to use one.

use serde::{Deserialize, Serialize};

/// A store that rules of the snapshot use. It has no secret: the agent reads those from files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Store {
    /// `namespace/name` of the `RateLimitStore`. Unique in a snapshot.
    pub name: String,
    /// What kind of store, and where it is.
    pub backend: StoreBackend,
    /// Name of a directory below the agent's `--store-secrets` directory, with the files `username`, `password` and
    /// `ca.crt`. Each of them is optional. Absent: the store needs no secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<String>,
}

/// A kind of store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum StoreBackend {
    /// Redis 6.2 or later, or Valkey.
    Redis {
        /// How the servers work together.
        topology: Topology,
        /// The servers as `host:port`: those of Sentinel, or some of a cluster. At least one.
        endpoints: Vec<String>,
        /// The name by which Sentinel knows the primary. Only with [`Topology::Sentinel`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        master_name: Option<String>,
        /// Whether the agent connects with TLS.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tls: bool,
    },
    /// Memcached.
    Memcached {
        /// The servers as `host:port`. Each key belongs to one of them. At least one.
        servers: Vec<String>,
    },
}

/// How servers of Redis work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topology {
    /// One server.
    Standalone,
    /// Sentinel knows which server is the primary.
    Sentinel,
    /// A cluster, which divides the keys among its servers.
    Cluster,
}

/// Agents of several pods count together, in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shared {
    /// [`Store::name`] of the store that counts.
    pub store: String,
    /// Names the counters in the store: `namespace/policy.rule`. Rules with equal names share their counters, also those
    /// of other clusters.
    pub counters: String,
    /// Orders changes of the limits: the store keeps the limits with the largest stamp.
    pub stamp: u64,
    /// What happens while the agent does not reach the store.
    pub on_store_loss: OnStoreLoss,
    /// How many agents share the limits: pods times clusters, perhaps rounded up. [`OnStoreLoss::LocalShare`] divides by
    /// it. At least 1.
    pub sharers: u32,
}

/// What happens while an agent does not reach a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnStoreLoss {
    /// The rule admits every request.
    FailOpen,
    /// The rule refuses every request, except with the seats that the agent still has.
    FailClosed,
    /// Each agent counts alone, with its part of the limits.
    LocalShare,
}
