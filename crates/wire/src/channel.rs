//! The messages of operator and agent about their channel.

use serde::{Deserialize, Serialize};

/// The interval at which an agent sends its status over the channel. Later versions can add fields: agents ignore
/// unknown fields.
///
/// The agent sends one message per interval: the status, or a message that nothing except the time has changed since
/// the last status. For intervals of a second or more, the agent sends at the start of a tenth of a second of the wall
/// clock. So an operator that reads from thousands of agents wakes up ten times a second, not once per agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusRequest {
    /// The interval, from 100 to 3,600,000 ms. For any other number, an agent uses the nearer of these two bounds.
    pub every_millis: u64,
}

/// The message of an agent that is about to close the channel. Later versions can add fields: readers ignore unknown
/// fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Goodbye {
    /// The reason, for people.
    pub reason: String,
    /// The time that the operator should wait before it connects again. The operator waits at most ten seconds.
    #[serde(default)]
    pub retry_after_millis: u64,
}
