//! What is enforced before anybody has put a snapshot: what the agent was started with, or what was put to the run before.
//!
//! A snapshot to start with that cannot be enforced is most likely of another version of Weir. To end the agent for it
//! would take the app away for as long as it is there; to go on without limits is what a snapshot to start with is there
//! to prevent. So the agent runs, says what is wrong, is not ready, and keeps the proxy port closed until somebody puts
//! a snapshot that it can enforce.

use crate::{
    apply::{Origin, Snapshots},
    cache::Cache,
};

/// With what an agent starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With a snapshot.
    Limited,
    /// With none, and nobody gave one.
    Unlimited,
    /// With none, although somebody gave one.
    Faulty,
}

/// Puts in force what there is.
pub(crate) fn start(snapshots: &Snapshots, given: Option<&[u8]>, cache: Option<&Cache>) -> Start {
    let kept = cache.and_then(|cache| {
        cache.read().unwrap_or_else(|error| {
            tracing::error!(%error, "--snapshot-cache cannot be read");
            None
        })
    });
    let tried = [(kept.as_deref(), Origin::Cache), (given, Origin::Bootstrap)];
    let mut start = Start::Unlimited;
    for (body, origin) in tried.into_iter().filter_map(|(body, origin)| Some((body?, origin))) {
        match snapshots.start_with(body, origin) {
            Ok(()) => return Start::Limited,
            Err(refusal) => {
                tracing::error!(origin = origin.name(), message = refusal.message, "cannot start with this snapshot");
                for fault in &refusal.faults {
                    tracing::error!(origin = origin.name(), path = fault.path, message = fault.message, "fault");
                }
                start = Start::Faulty;
            }
        }
    }
    start
}
