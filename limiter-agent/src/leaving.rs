//! That the pod of this agent is being deleted: the time between that and the signal to stop.
//!
//! The app may serve all through it, or stop at once; its kernel refuses connections from then on. Until then everybody is
//! served, newcomers too, because some clients hear later than others that this pod goes; but each answer is the last on its
//! connection, so that none is left by the time the app stops. When it has stopped, the proxy port is closed as the app's own would be.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::proxy::{AppAddress, LOOK};

/// Whether the agent is leaving, and how far it is.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// For those who ask with each request: a token takes a lock.
    flag: AtomicBool,
    begun: CancellationToken,
    /// The proxy port is closed, whether or not the pod was said to be deleted before.
    pub(crate) closed: CancellationToken,
}

impl Leaving {
    /// From now on each answer is the last on its connection.
    pub(crate) fn begin(&self) {
        self.flag.store(true, Relaxed);
        if !self.begun.is_cancelled() {
            tracing::info!("leaving: each answer is the last on its connection");
        }
        self.begun.cancel();
    }

    /// Whether it has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.flag.load(Relaxed)
    }

    /// Returns once it has begun.
    pub(crate) async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Returns once it has begun and the app takes no connections any more.
    pub(crate) async fn app_is_gone(&self, app: &AppAddress) {
        self.begun().await;
        while !app.is_down().await {
            sleep(LOOK).await;
        }
    }
}
