//! The snapshot that the agent enforces before the first push: the cached snapshot of its previous run, or the
//! bootstrap snapshot.
//!
//! A bootstrap snapshot that the agent cannot enforce most likely comes from another version of Weir. If the agent
//! exited, the app would be unreachable. If the agent ran without limits, the bootstrap snapshot would have no effect.
//! So the agent runs, logs the fault, reports not ready, and keeps the proxy port closed until it receives
//! a snapshot that it can enforce. The same applies to a cached snapshot that cannot be read.

use crate::{
    cache::Cache,
    snapshots::{Origin, Snapshots},
};

/// The state of the rules when the agent starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// A snapshot is in force.
    Limited,
    /// Nothing is enforced, because no snapshot was given.
    Unlimited,
    /// Nothing is enforced, because the agent could not read or enforce the given snapshot.
    Faulty,
}

/// Puts the cached snapshot or the bootstrap snapshot in force.
pub(crate) fn start(snapshots: &Snapshots, given: Option<&[u8]>, cache: Option<&Cache>) -> Start {
    let mut start = Start::Unlimited;
    let kept = cache.and_then(|cache| {
        cache.read().unwrap_or_else(|error| {
            tracing::error!(%error, "--snapshot-cache cannot be read");
            start = Start::Faulty;
            None
        })
    });
    let tried = [(kept.as_deref(), Origin::Cache), (given, Origin::Bootstrap)];
    for (body, origin) in tried.into_iter().filter_map(|(body, origin)| Some((body?, origin))) {
        match snapshots.start_with(body, origin) {
            Ok(()) => return Start::Limited,
            Err(refusal) => {
                tracing::error!(origin = origin.name(), reason = refusal.message, "cannot start with this snapshot");
                for fault in &refusal.faults {
                    tracing::error!(origin = origin.name(), path = fault.path, reason = fault.message, "fault");
                }
                start = Start::Faulty;
            }
        }
    }
    start
}

#[cfg(test)]
#[path = "bootstrap_fuzz.rs"]
mod fuzz;
