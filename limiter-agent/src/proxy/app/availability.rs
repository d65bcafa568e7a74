//! Tracks whether the app accepts connections, by events instead of polling.
//!
//! An app that stops closes its port and its idle connections, which its clients detect. The agent's clients cannot
//! detect this, so the agent closes their connections, too. It checks the app as soon as the app closes an idle
//! connection or refuses a new one. `weir-agent leave` cannot replace this check: without a `preStop` hook in the app's
//! container, the app gets SIGTERM before the agent learns of the deletion.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Availability {
    suspected: Notify,
    drain: CancellationToken,
    up: ArcSwap<CancellationToken>,
}

impl Availability {
    pub(super) fn new(drain: &CancellationToken) -> Self {
        let up = ArcSwap::from_pointee(drain.child_token());
        Self { suspected: Notify::new(), drain: drain.clone(), up }
    }

    pub(super) fn suspect(&self) {
        self.suspected.notify_one();
    }

    pub(super) async fn suspected(&self) {
        self.suspected.notified().await;
    }

    /// A token that is cancelled when the app refuses connections, or when the drain begins.
    pub(super) fn up(&self) -> CancellationToken {
        CancellationToken::clone(&self.up.load())
    }

    pub(super) fn went_down(&self) {
        self.up.load().cancel();
    }

    pub(super) fn came_back(&self) {
        self.up.store(Arc::new(self.drain.child_token()));
    }
}
