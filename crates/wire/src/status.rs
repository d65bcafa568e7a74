//! What an agent says of itself. Counters only grow while `instance` stays the same.

use serde::{Deserialize, Serialize};

/// The content type of statuses that are told again and again, each on a line of its own.
pub const STATUS_LINES: &str = "application/x-ndjson";

/// The answer to `GET /v1/status`. Fields may be added: readers ignore what they do not know.
///
/// It comes with an entity tag (RFC 9110) that names all of it but `uptime_millis`. Whoever sends that back in `If-None-Match`
/// is answered with 304 and nothing else while nothing else has changed. An agent of before that answers in full.
///
/// `GET /v1/status?everyMillis=1000` is answered with [lines](STATUS_LINES), without an end: a status at once, and then a line
/// each second, which is empty while nothing but `uptime_millis` has changed since the status before. From 100 to 3,600,000 ms.
/// An agent of before that answers once. Lines that are a second apart or more come when a tenth of a second of the wall clock
/// begins: who listens to thousands of agents is so woken ten times a second, and not for each of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// [`crate::WIRE_VERSION`] of the agent.
    pub wire_version: u32,
    /// Made afresh at each start of an agent: counters of different instances must not be subtracted.
    pub instance: String,
    /// Version of the agent's program.
    pub agent_version: String,
    /// Since the agent started.
    pub uptime_millis: u64,
    /// The snapshot in force; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
    /// Every policy of the snapshot in force, in its order.
    #[serde(default)]
    pub policies: Vec<PolicyStatus>,
}

/// Which snapshot an agent enforces.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InForce {
    /// [`crate::Snapshot::sequence`] of the snapshot.
    pub sequence: u64,
    /// [`crate::Snapshot::revision`] of the snapshot.
    pub revision: String,
    /// Since when this revision is enforced: milliseconds of Unix time by the agent's clock.
    pub since_unix_millis: u64,
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
    /// Every rule, in its order.
    pub rules: Vec<RuleStatus>,
}

/// Requests that one rule decided on since the agent started, or since the policy first came to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatus {
    /// Name of the rule.
    pub name: String,
    /// Matched and let through; for a bypass rule, all that it matched.
    pub allowed: u64,
    /// Refused because of this rule.
    pub limited: u64,
    /// Let through although this rule would have refused, because its policy is in shadow mode.
    pub shadow_limited: u64,
    /// Of those let through, how many had to wait for their turn.
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
    /// Idle keys given up so far.
    pub evicted: u64,
    /// Requests that were counted in the overflow, by key, because the table was full.
    pub overflowed: u64,
}
