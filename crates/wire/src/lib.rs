//! What Weir's operator and agents say to each other.
//!
//! A [`Snapshot`] is everything that one agent has to enforce. The operator puts it, whole, to `PUT /v1/config`; the
//! agent takes it whole or refuses it whole, and answers `GET /v1/status` with a [`Status`]: what is in force, since
//! when, and what it let through.
//!
//! Before that, an agent proves which pod it is: it sends an [`IdentityRequest`] to the operator and gets the certificate
//! that its control port shows.
//!
//! The types are plain data with a JSON form that a person can write by hand: camelCase names, periods in
//! milliseconds, and unknown fields refused, because an agent must never accept a word that it cannot honour. They
//! hold no logic but one bound that both sides must know ([`check_logs`]): the operator compiles policies into them, the agent lowers them into limiters. The files under
//! `tests/golden/` freeze the form; a change to one of them is a new [`WIRE_VERSION`].
//!
//! # Versions side by side
//!
//! Agents are replaced with their pods, so those of several versions talk to one operator. The version is that of what is
//! *sent* to an agent: one that is sent a snapshot of another version refuses it ([`RefusalKind::Invalid`], with the path
//! `wireVersion`) and goes on with what it has, and the operator reports its pod as drifted with the words of the refusal.
//! What an agent *answers* is understood across versions: [`ApplyReply`], [`Refusal`] and [`Status`] may gain fields that
//! readers can do without, and lose none; a refusal is of one of the kinds that there are.

mod explain;
mod identity;
mod logs;
mod reply;
mod snapshot;
mod status;

pub use explain::{Decision, ExplainReply, ExplainRequest, ExplainedLimit, ExplainedRule};
pub use identity::{
    IDENTITY_PATH, IdentityRefusal, IdentityRefusalKind, IdentityReply, IdentityRequest, OPERATOR_NAME,
};
pub use logs::{LONGEST_LOG, LogsTooLarge, check_logs};
pub use reply::{ApplyReply, Fault, Refusal, RefusalKind};
pub use snapshot::{
    Action, Cost, FieldMatch, HeaderStyle, KeyPart, Limit, Match, Mode, OnLimit, OnMessage, Override, Per, PolicyRules,
    Rule, Snapshot, Strategy,
};
pub use status::{InForce, KeyTable, PolicyStatus, RuleStatus, STATUS_LINES, Status};

/// The largest sequence of a snapshot: microseconds of Unix time reach it in the year 2255, and every program that reads JSON counts
/// exactly up to it. One beyond would leave nothing to count with.
pub const MAX_SEQUENCE: u64 = 1 << 53;

/// The version of the form described by this crate. An agent refuses a snapshot of any other.
pub const WIRE_VERSION: u32 = 1;

/// The largest snapshot that an agent reads, in bytes of JSON.
pub const MAX_SNAPSHOT_BYTES: usize = 1024 * 1024;
