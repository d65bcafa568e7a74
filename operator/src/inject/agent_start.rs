//! What an agent gets at its start.

use super::quota::NamespaceBounds;
use crate::compile::StoreSecrets;

/// What an agent gets at its start.
#[derive(Clone, Debug, Default)]
pub(super) struct AgentStart<'a> {
    /// The bootstrap snapshot.
    pub(super) bootstrap: Option<&'a str>,
    /// The identity service. Without one, the agent's control port accepts every client.
    pub(super) authority: Option<Authority>,
    /// The bounds of the pod's namespace.
    pub(super) bounds: NamespaceBounds,
    /// The Secrets of the stores that the pod's policies use.
    pub(super) secrets: Vec<StoreSecrets>,
}

/// The identity service for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    /// Its URL.
    pub(super) url: String,
    /// The audience of the token.
    pub(super) audience: String,
    /// The authorities to trust, in PEM.
    pub(super) bundle: String,
}
