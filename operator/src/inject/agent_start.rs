//! The values that an agent gets at its start.

use super::namespace_bounds::NamespaceBounds;
use crate::compile::StoreSecrets;

#[derive(Clone, Debug, Default)]
pub(super) struct AgentStart<'a> {
    pub(super) bootstrap: Option<&'a str>,
    /// The identity service, or `None` if the agent's control port accepts every client.
    pub(super) authority: Option<Authority>,
    pub(super) bounds: NamespaceBounds,
    /// The Secrets of the stores that the pod's policies use.
    pub(super) secrets: Vec<StoreSecrets>,
}

/// The parameters with which an agent calls the identity service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) url: String,
    /// The audience of the token.
    pub(super) audience: String,
    /// The authorities to trust, in PEM.
    pub(super) bundle: String,
}
