//! The ban of keys that a rule refuses again and again.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::{BanLength, BanWindow};

/// Bans a key that the rule refuses again and again: the rule then refuses all requests of the key for a fixed time.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ban {
    /// Number of refusals of a key that start a ban, 1 to 1000. The last of them starts the ban.
    #[schemars(range(min = 1, max = 1_000))]
    pub after: i32,
    /// Time in which these refusals happen, 1ms to 168h. Defaults to `for`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BanWindow")]
    pub within: Option<BanWindow>,
    /// Length of the ban, 1ms to 168h.
    #[serde(rename = "for")]
    pub length: BanLength,
}
