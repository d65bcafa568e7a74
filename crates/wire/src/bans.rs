//! `GET /v1/bans` lists the banned keys of an agent, `DELETE /v1/bans` lifts bans, and `DELETE /v1/counts` resets counts.

use serde::{Deserialize, Serialize};

/// The banned keys of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BanList {
    /// The number of banned keys. The list can be shorter, because its length is bounded.
    pub total: u64,
    /// The banned keys, in no order.
    pub bans: Vec<BannedKey>,
}

/// A banned key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BannedKey {
    /// The namespace and the name of the policy, as in the body of a refusal: `shop/checkout`.
    pub policy: String,
    /// The name of the rule.
    pub rule: String,
    /// One value for each part of the key, and `None` for a part that the request did not have. A value of more than 64
    /// bytes is shown as its hash, `sha256:` and 64 hexadecimal digits. Any other value that is not UTF-8 is shown as
    /// `bytes:` and its hexadecimal digits.
    pub key: Vec<Option<String>>,
    /// The time until the ban ends.
    pub ends_after_millis: u64,
}

/// The answer to a request that lifts bans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiftedBans {
    /// The number of keys that were banned and are not banned any more.
    pub lifted: u64,
}

/// The answer to a request that resets the count of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResetCount {
    /// The names of the limits in which the key has its full credit now.
    pub limits: Vec<String>,
    /// The number of bans that were lifted.
    pub lifted: u64,
}
