//! The status that an agent reports. Its statistics only grow while `instance` stays the same.

use serde::{Deserialize, Serialize};

/// The state of an agent: on the channel and as the answer to `GET /v1/status`. Later versions can add fields: readers
/// ignore unknown fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The [`crate::WIRE_VERSION`] of the agent.
    pub wire_version: u32,
    /// The identifier of one run of an agent. Statistics of different instances must not be subtracted.
    pub instance: String,
    /// The version of the agent's program.
    pub agent_version: String,
    /// The time since the agent started.
    pub uptime_millis: u64,
    /// The snapshot in force. None before the first snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<SnapshotInForce>,
    /// All policies of the snapshot in force, in the order of the snapshot.
    #[serde(default)]
    pub policies: Vec<PolicyStatus>,
    /// All stores of the snapshot in force, in the order of the snapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<StoreStatus>,
}

/// The snapshot that an agent enforces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInForce {
    /// The [`crate::Snapshot::sequence`] of the snapshot.
    pub sequence: u64,
    /// The [`crate::Snapshot::revision`] of the snapshot.
    pub revision: String,
    /// The time at which this revision came into force, in milliseconds of Unix time by the agent's clock.
    pub since_unix_millis: u64,
}

/// The state of a store, as the agent observes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// The [`crate::Store::name`].
    pub name: String,
    /// Whether the store answers, and does not refuse all questions of a rule. `true` if the agent has not called the
    /// store yet.
    pub reached: bool,
    /// The time since when `reached` has this value, in milliseconds of Unix time by the agent's clock.
    pub since_unix_millis: u64,
    /// The reason why the agent does not reach the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The status of one policy that the agent enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// The [`crate::PolicyRules::uid`].
    pub uid: String,
    /// The namespace of the policy.
    pub namespace: String,
    /// The name of the policy.
    pub name: String,
    /// The revision of the policy in force.
    pub revision: String,
    /// All rules, in the order of the policy.
    pub rules: Vec<RuleStatus>,
}

/// The numbers of requests that one rule decided on since the agent started, or since the agent first received the
/// policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatus {
    /// The name of the rule.
    pub name: String,
    /// Matched and admitted requests. For a bypass rule, all matched requests.
    pub allowed: u64,
    /// Requests that were refused because of this rule.
    pub limited: u64,
    /// Requests that this rule would have refused, and that were admitted because of shadow mode.
    pub shadow_limited: u64,
    /// Allowed requests that waited for their turn.
    #[serde(default)]
    pub waited: u64,
    /// The rule's key table, if it has keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeyTable>,
}

/// The number of keys in a key table, and its counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyTable {
    /// The number of keys in the table.
    pub tracked: u64,
    /// The largest number of keys in the table.
    pub capacity: u64,
    /// The number of idle keys that were removed.
    pub evicted: u64,
    /// The number of requests that were counted in the overflow, by key, because the table was full.
    pub overflowed: u64,
}
