//! Whether the app takes connections, as far as it shows by itself: it is not asked all the time.
//!
//! An app that stops closes its port and its idle connections, and so its clients know. Clients of the agent do not see that, so
//! the agent does the same for them: it looks as soon as the app closes an idle connection or refuses a new one.
//! `weir-agent leave` says that the pod is being deleted, but only after the app has had its signal to stop, if the app has no hook.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(super) struct Presence {
    suspected: Notify,
    drain: CancellationToken,
    up: ArcSwap<CancellationToken>,
}

impl Presence {
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

    /// Cancelled when the app takes no connections any more, or when the drain begins.
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
