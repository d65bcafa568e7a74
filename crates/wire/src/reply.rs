//! The agent's answers to a snapshot, over the channel and to `PUT /v1/config`.

use serde::{Deserialize, Serialize};

use crate::InForce;

/// 200: the snapshot is in force from now on (or was already).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplyReply {
    /// What is in force now.
    pub in_force: InForce,
}

/// Any other answer: nothing changed, the last snapshot stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    /// Why, for programs.
    pub error: RejectionKind,
    /// Why, and how to fix it, for people.
    pub message: String,
    /// Every fault found, for [`RejectionKind::Invalid`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    /// What is in force; none before the first snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<InForce>,
}

/// Why a snapshot was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RejectionKind {
    /// 400: not JSON.
    Malformed,
    /// 413: larger than [`crate::MAX_SNAPSHOT_BYTES`].
    TooLarge,
    /// 409: its sequence is smaller than that of the snapshot in force, or equal with a different revision.
    Stale,
    /// 422: the snapshot cannot be enforced; `faults` lists why.
    Invalid,
}

/// One fault of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// Path of the field: `policies[0].rules[1].limits[0].requests`.
    pub path: String,
    /// What is wrong and how to fix it.
    pub message: String,
}
