//! What an agent reports about itself. Counters only grow while `instance` stays the same.

use serde::{Deserialize, Serialize};

/// The content type of a stream of statuses, each on its own line.
pub const STATUS_LINES: &str = "application/x-ndjson";

/// The answer to `GET /v1/status`. Later versions may add fields: readers ignore unknown fields.
///
/// The answer has an entity tag (RFC 9110) for all fields except `uptime_millis`. A reader that sends the tag in
/// `If-None-Match` receives an empty 304 while nothing else has changed. Agents that do not support tags always send
/// the full status.
///
/// The answer to `GET /v1/status?everyMillis=1000` is an endless stream of [lines](STATUS_LINES): one status at once,
/// then one line per second. A line is empty if only `uptime_millis` has changed since the last status. The interval
/// can be 100 to 3,600,000 ms. Agents that do not support streams answer once. For intervals of a second or more, an
/// agent sends its lines at the start of a tenth of a second of the wall clock. So an operator that reads from
/// thousands of agents wakes up ten times a second, not once per agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// [`crate::WIRE_VERSION`] of the agent.
    pub wire_version: u32,
    /// Identifies one run of an agent. Counters of different instances must not be subtracted.
    pub instance: String,
    /// Version of the agent's program.
    pub agent_version: String,
    /// Time since the agent started.
    pub uptime_millis: u64,
    /// The snapshot in force; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
    /// Every policy of the snapshot in force, in the order of the snapshot.
    #[serde(default)]
    pub policies: Vec<PolicyStatus>,
    /// Every store of the snapshot in force, in the order of the snapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<StoreStatus>,
}

/// Which snapshot an agent enforces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InForce {
    /// [`crate::Snapshot::sequence`] of the snapshot.
    pub sequence: u64,
    /// [`crate::Snapshot::revision`] of the snapshot.
    pub revision: String,
    /// When this revision came into force: milliseconds of Unix time by the agent's clock.
    pub since_unix_millis: u64,
}

/// Whether the agent reaches a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// [`crate::Store::name`].
    pub name: String,
    /// Whether the store answers. An agent that has not yet asked says `true`.
    pub reached: bool,
    /// Since when `reached` has this value: milliseconds of Unix time by the agent's clock.
    pub since_unix_millis: u64,
    /// Why the agent does not reach the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One policy as the agent enforces it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// [`crate::PolicyRules::uid`].
    pub uid: String,
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy.
    pub name: String,
    /// The policy's revision that is in force.
    pub revision: String,
    /// Every rule, in the order of the policy.
    pub rules: Vec<RuleStatus>,
}

/// Requests that one rule decided on since the agent started, or since the agent first received the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatus {
    /// Name of the rule.
    pub name: String,
    /// Matched and admitted; for a bypass rule, all that it matched.
    pub allowed: u64,
    /// Refused because of this rule.
    pub limited: u64,
    /// Admitted although this rule would have refused, because its policy is in shadow mode.
    pub shadow_limited: u64,
    /// How many of the allowed requests waited for their turn.
    #[serde(default)]
    pub waited: u64,
    /// The rule's key table, if it has keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeyTable>,
}

/// How full a key table is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyTable {
    /// Keys tracked now.
    pub tracked: u64,
    /// Keys tracked at most.
    pub capacity: u64,
    /// How many idle keys were removed so far.
    pub evicted: u64,
    /// Requests that were counted in the overflow, by key, because the table was full.
    pub overflowed: u64,
}
