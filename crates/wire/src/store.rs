//! Stores that count for several agents, and the settings of a rule that uses a store.

use serde::{Deserialize, Serialize};

/// The [`Store::name`] of the operator, which counts for the rules of scope Fleet. The name of a `RateLimitStore` contains
/// a slash, so no other store has this name.
pub const OPERATOR_STORE: &str = "operator";

/// A store that rules of the snapshot use. This message contains no secret: the agent reads secrets from files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Store {
    /// The `namespace/name` of the `RateLimitStore`, or [`OPERATOR_STORE`]. Unique in a snapshot.
    pub name: String,
    /// The kind of the store, and its addresses.
    pub backend: StoreBackend,
    /// The name of a directory below the agent's `--store-secrets` directory, with the files `username`, `password`,
    /// `sentinel-username`, `sentinel-password`, `tls.crt`, `tls.key` and `ca.crt`. Each of these files is optional, except
    /// for `hasAuthorities` and `hasCredentials`. If absent, the store needs no secret. An agent without
    /// `--store-secrets` never connects to a store with `secrets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<String>,
}

impl Store {
    /// Returns true if this is the operator.
    pub fn is_operator(&self) -> bool {
        self.name == OPERATOR_STORE
    }
}

/// A kind of store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum StoreBackend {
    /// Redis 6.2 or later, or Valkey.
    Redis {
        /// The topology of the servers.
        topology: Topology,
        /// The servers as `host:port`. For Sentinel, the servers of Sentinel; for a cluster, some of its servers. At
        /// least one.
        endpoints: Vec<String>,
        /// Sentinel's name for the primary. Allowed only with [`Topology::Sentinel`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        master_name: Option<String>,
        /// Whether the agent connects with TLS.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        tls: bool,
        /// Whether the agent trusts only the authorities in the file `ca.crt` of [`Store::secrets`]. If `false` or absent,
        /// it trusts the authorities in that file if the file exists, and otherwise the public authorities.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        has_authorities: bool,
        /// Whether the store has credentials: the file `password` or, with TLS, a client certificate in the files
        /// `tls.crt` and `tls.key`. With Sentinel, the file `sentinel-password` is enough. If `false` or absent, the
        /// agent connects without them if there are no such files.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        has_credentials: bool,
    },
    /// Memcached.
    Memcached {
        /// The servers as `host:port`. Each key belongs to one of them. At least one.
        servers: Vec<String>,
    },
    /// The operator that leads. Agents ask it over the channel.
    Operator,
}

/// The topology of Redis servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topology {
    /// One server.
    Standalone,
    /// Several servers, of which Sentinel selects the primary.
    Sentinel,
    /// A cluster, which divides the keys among its servers.
    Cluster,
}

/// The settings of a rule whose agents in several pods count together, in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shared {
    /// The [`Store::name`] of the store that counts.
    pub store: String,
    /// The name of the counters in the store: `namespace/policy.rule`. Rules with equal names share their counters,
    /// even if the rules are in different clusters.
    pub counters: String,
    /// A number that orders changes of the limits: the store keeps the limits with the largest stamp.
    pub stamp: u64,
    /// The behaviour while the agent does not reach the store.
    pub on_store_loss: OnStoreLoss,
    /// The number of agents that share the limits: pods times clusters, possibly rounded up.
    /// [`OnStoreLoss::LocalShare`] divides the limits by this number. At least 1.
    pub sharers: u32,
}

impl Shared {
    /// Returns true if the rule has scope Fleet: the operator counts it.
    pub fn is_fleet(&self) -> bool {
        self.store == OPERATOR_STORE
    }
}

/// The behaviour while an agent does not reach a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnStoreLoss {
    /// The rule admits every request.
    FailOpen,
    /// The rule refuses every request, except with the seats that the agent still has.
    FailClosed,
    /// Each agent counts alone, with its share of the limits.
    LocalShare,
}
