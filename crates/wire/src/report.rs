//! What operator and agent say about their channel.

use serde::{Deserialize, Serialize};

/// How often an agent sends its status over the channel. Later versions may add fields: agents ignore unknown fields.
///
/// The agent sends one message per interval: the status, or that nothing except the time has changed since the last
/// one. For intervals of a second or more, it sends at the start of a tenth of a second of the wall clock. So an operator
/// that reads from thousands of agents wakes up ten times a second, not once per agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The interval, from 100 to 3,600,000 ms. An agent takes the nearest of these for any other number.
    pub every_millis: u64,
}

/// An agent is about to close the channel. Later versions may add fields: readers ignore unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Goodbye {
    /// Why, for people.
    pub reason: String,
    /// How long the operator should wait before it connects again. It waits at most ten seconds.
    #[serde(default)]
    pub retry_after_millis: u64,
}
