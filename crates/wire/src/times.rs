//! The times that operator and agents must agree on.
//!
//! Agents and operators of other versions have their own copy of these times. So never change [`PRESENCE`], never lower
//! [`FIRST_CHANNEL`], and never raise [`NEW_POD`].

use std::time::Duration;

/// The time for which a silent agent counts as present, in addition to the interval between two statuses. The last
/// message of an agent can arrive at the end of this time, and then the time begins again. So an agent that gets no
/// message begins its share of limits of scope Fleet after twice the interval and this time.
pub const PRESENCE: Duration = Duration::from_secs(4);

/// The time for which the operator does not count a new pod as absent.
pub const NEW_POD: Duration = Duration::from_secs(10);

/// The operator should connect within this time after the start of an agent. Until then, the agent refuses requests
/// instead of using its share.
pub const FIRST_CHANNEL: Duration = Duration::from_secs(20);

/// The longest time by which a sequence can be ahead of the clock. No operator writes a higher sequence.
pub const SEQUENCE_HORIZON: Duration = Duration::from_hours(365 * 24);

// An agent must not begin its share before its pod can count as absent.
const _: () = assert!(NEW_POD.as_nanos() < FIRST_CHANNEL.as_nanos());
