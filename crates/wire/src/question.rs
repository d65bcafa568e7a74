//! The questions of agents about rules of scope Fleet, which the operator counts, and its answers.
//!
//! A question takes units of all limits of a rule for one key, and an answer grants them. The operator decides as a
//! store in Redis does. `weir-seats` explains the numbers, and converts them.

use serde::{Deserialize, Serialize};

/// The largest number of questions in one message, and of answers.
pub const MOST_QUESTIONS: usize = 256;

/// A position in the supply of a limit. The meaning of the numbers depends on the strategy.
pub type Mark = [u64; 3];

/// A question about one key of a rule. Later versions can add fields: the operator ignores unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The number that the answer repeats. With the number 0, the agent expects no answer.
    pub id: u64,
    /// The [`crate::Shared::counters`] of the rule.
    pub counters: String,
    /// The hash of the key, as a hexadecimal number.
    pub hash: String,
    /// The [`crate::Shared::stamp`] of the limits.
    pub stamp: u64,
    /// The limits, with commas between them: number, strategy, requests, period, burst and debt. Each limit has exactly
    /// these six numbers: an operator of another version refuses a seventh one. A new parameter of a limit needs a new
    /// field of the question, or a new number of a strategy, which older operators refuse.
    pub limits: String,
    /// The number of requests that wait for the answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requests: u64,
    /// The cost of each request.
    pub cost: u64,
    /// The longest time that a request can wait for its slot.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub patience_micros: u64,
    /// The number of units to take for later requests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefetch: u64,
    /// Units for later requests begin this long after the answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub guard_micros: u64,
    /// The longest time from the answer until a unit for later requests can be used.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lookahead_micros: u64,
    /// The units that the agent used without asking.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub owed: u64,
    /// The units of earlier requests that were not used after all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub credit: u64,
    /// The last level that the agent received, one mark for each limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Vec<Mark>>,
    /// Units that the agent received and did not use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returned: Option<Returned>,
    /// The part about the ban of the key. Absent if the rule has no ban.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ban: Option<BanPart>,
}

/// The part of a question that is about the ban of its key. A question without this part ends the ban in the operator,
/// if the question's limits are the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BanPart {
    /// The length of bans.
    pub for_micros: u64,
    /// What the operator does with the ban.
    pub change: BanChange,
    /// The beginning of the ban that the agent has seen, by the operator's clock.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seen: u64,
}

/// What a question does with the ban of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BanChange {
    /// A ban in force stays.
    Keep,
    /// The time since the start of the key's ban, in microseconds.
    Start(u64),
    /// The ban ends.
    Lift,
}

/// The message of an agent that has sent a question for each level that it knows. Later versions can add fields: the
/// operator ignores unknown fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LevelsSent {
    /// False if the agent knows more levels than it can send, or levels under other limits than now.
    pub is_complete: bool,
    /// The lower bound of the previous operator's time, in microseconds of Unix time. None if the agent does not know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<u64>,
    /// The number of messages without answers that the agent has received on this channel. The last of them is the one
    /// that the agent confirms: a confirmation that waited in the network confirms nothing later.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub releases: u64,
}

/// Units that an agent gives back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Returned {
    /// The [`Granted::birth`] of the answer that brought the units.
    pub birth: u64,
    /// The number of units.
    pub units: u64,
    /// The marks at which the units end, one for each limit.
    pub ends: Vec<Mark>,
}

/// The answer to a question. Later versions can add fields: agents ignore unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The [`Question::id`].
    pub id: u64,
    /// What the operator decided.
    pub outcome: Outcome,
}

/// What the operator decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The operator counted the question. It can have granted no request.
    Counted(Granted),
    /// The operator does not count yet. The agent should ask again soon.
    NotYet,
    /// The operator did not count the question. The text names the reason, for people.
    Refused(String),
}

/// The units that the operator granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Granted {
    /// The number of granted requests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub granted: u64,
    /// The number of units for later requests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefetched: u64,
    /// The time of the decision in microseconds of Unix time, by the operator's clock.
    pub time: u64,
    /// The time at which the operator began to count the key.
    pub birth: u64,
    /// The time from which the agent can usefully ask again.
    pub next: NextQuestion,
    /// The stamp of the limits with which the operator decided.
    pub stamp: u64,
    /// The limits with which the operator decided. Absent if they are those of the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<String>,
    /// The marks at which the units of the granted requests begin, one for each limit.
    pub served: Vec<Mark>,
    /// The marks at which the units for later requests begin.
    pub lent: Vec<Mark>,
    /// The marks after this decision.
    pub level: Vec<Mark>,
    /// The beginning of the ban in force, by the operator's clock. Zero if the key is not banned.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub banned_since: u64,
    /// The part of each bucket that is reserved for absent pods, in multiples of 2^-30. The granted units of a bucket
    /// follow each other more slowly then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reserved: u32,
}

/// The time from which an agent can usefully ask about a key again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NextQuestion {
    /// All requests were granted.
    Now,
    /// At this time in microseconds of Unix time, by the operator's clock.
    At(u64),
    /// Never: the cost is larger than a limit.
    Never,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}
