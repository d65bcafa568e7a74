//! The steps of a link that take time: waiting for a permit, and pushing a content.

use std::sync::Arc;

use tokio::time::Instant;

use crate::plan::Content;

/// The permit of a lane, which each dial and each push needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LanePermit {
    None,
    Waiting,
    Held,
}

#[derive(Debug)]
pub(super) enum Push {
    /// The agent enforces the wanted content.
    Idle,
    /// A push is needed, but not before this time.
    At(Instant),
    /// A push was sent and is unanswered.
    Sent { content: Arc<Content>, at: Instant },
}
