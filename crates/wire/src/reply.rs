//! The agent's answers to a snapshot, over the channel and to `PUT /v1/config`.

use serde::{Deserialize, Serialize};

use crate::SnapshotInForce;

/// 200: the snapshot is in force, from now on or already before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApplyReply {
    /// The snapshot in force now.
    pub in_force: SnapshotInForce,
}

/// The agent did not accept the snapshot (any status except 200). Nothing has changed, and the last snapshot stays in
/// force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejection {
    /// The reason, for programs.
    pub error: RejectionKind,
    /// The reason and how to fix it, for people.
    pub message: String,
    /// The faults of the snapshot, for [`RejectionKind::Invalid`]. If there are many, the last entry is the number of those
    /// that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    /// The snapshot in force. None before the first snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<SnapshotInForce>,
}

/// The reason why a snapshot was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RejectionKind {
    /// 400: the snapshot is not JSON.
    Malformed,
    /// 413: the snapshot is larger than [`crate::MAX_SNAPSHOT_BYTES`].
    TooLarge,
    /// 409: the sequence is smaller than the sequence of the snapshot in force, or equal with a different revision.
    Stale,
    /// 422: the snapshot cannot be enforced. `faults` lists the reasons.
    Invalid,
}

/// One fault of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// The path of the field, such as `policies[0].rules[1].limits[0].requests`.
    pub path: String,
    /// The fault and how to fix it.
    pub message: String,
}
