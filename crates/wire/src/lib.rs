//! The messages between Weir's operator and agents.
//!
//! A [`Snapshot`] contains all rules that one agent enforces. The operator sends the whole snapshot over the channel
//! (`weir-channel`), and other programs send it to `PUT /v1/config`. The agent accepts or rejects the whole snapshot.
//! The agent reports a [`Status`] over the channel and on `GET /v1/status`: the snapshot in force, the time at which it
//! came into force, and the numbers of requests that its rules decided on.
//!
//! Before its first snapshot, an agent proves the identity of its pod: it sends an [`IdentityRequest`] to the operator
//! and receives the certificate that its control port presents.
//!
//! The types are plain data with a JSON form that people can write by hand: camelCase names, periods in milliseconds. A
//! snapshot with an unknown field is rejected, because an agent must never accept a field that it cannot enforce. The
//! types have only the logic that both sides need: the bounds ([`check_logs`], [`log_bytes`]), and a check whether a
//! rule matches every request ([`Rule::takes_all`]). The operator compiles policies into these types, and the agent
//! lowers them into limiters. The files under `tests/golden/` freeze the form. A change of what the operator sends for
//! policies that exist already requires a new [`WIRE_VERSION`]. A new field that only new policies use does not.
//!
//! # Versions
//!
//! An agent is replaced together with its pod, so agents of several versions talk to one operator. The version covers
//! the messages that the operator *sends*. An agent rejects a snapshot of another version ([`RejectionKind::Invalid`],
//! with the path `wireVersion`) and keeps its last snapshot. The operator reports the pod as drifted, with the message
//! of the rejection. The messages that an agent *answers* are compatible across versions: later versions of
//! [`ApplyReply`], [`Rejection`] and [`Status`] can have more optional fields, and never have fewer fields. A rejection
//! always has one of the existing kinds.

mod bans;
mod channel;
mod explain;
mod identity;
mod logs;
mod question;
mod reply;
mod snapshot;
mod status;
mod store;
mod takes_all;
mod times;

pub use self::{
    bans::{BanList, BannedKey, LiftedBans, ResetCount},
    channel::{Goodbye, StatusRequest},
    explain::{
        Decision, ExplainDescriptor, ExplainDescriptorLimit, ExplainReply, ExplainRequest, ExplainedLimit,
        ExplainedRule,
    },
    identity::{IDENTITY_PATH, IdentityRefusal, IdentityRefusalKind, IdentityReply, IdentityRequest, OPERATOR_NAME},
    logs::{
        DEFAULT_MAX_KEYS, LONGEST_LOG, LogsTooLarge, MAX_LOG_BYTES, MOST_BAN_AFTER, check_ban, check_logs, log_bytes,
    },
    question::{
        Answer, BanChange, BanPart, Granted, LevelsSent, MOST_QUESTIONS, Mark, NextQuestion, Outcome, Question,
        Returned,
    },
    reply::{ApplyReply, Fault, Rejection, RejectionKind},
    snapshot::{
        Action, Ban, Concurrency, ConcurrencyOverride, Cost, EntryMatch, FieldMatch, HeaderStyle, HeadersOn, KeyPart,
        Limit, LimitOverride, Match, Mode, OnDeadline, OnLimit, OnMessage, Override, Per, PolicyRules, ResponseHeader,
        Rule, Snapshot, Strategy,
    },
    status::{KeyTable, PolicyStatus, RuleStatus, SnapshotInForce, Status, StoreStatus},
    store::{OPERATOR_STORE, OnStoreLoss, Shared, Store, StoreBackend, Topology},
    takes_all::takes_every_path,
    times::{FIRST_CHANNEL, NEW_POD, PRESENCE, SEQUENCE_HORIZON},
};

/// The largest sequence of a snapshot. Every JSON parser reads integers up to this number exactly. Microseconds of Unix
/// time reach it in the year 2255. After a larger sequence, there would be no number for the next snapshot.
pub const MAX_SEQUENCE: u64 = 1 << 53;

/// The version of the messages in this crate. An agent rejects snapshots of any other version.
pub const WIRE_VERSION: u32 = 1;

/// The largest snapshot that an agent reads, in bytes of JSON.
pub const MAX_SNAPSHOT_BYTES: usize = 1024 * 1024;
