//! The state between the deletion of the pod and SIGTERM.
//!
//! During this time the app may continue to serve, or stop immediately. Then its kernel refuses connections. While the
//! app serves, the agent serves all clients, including new ones, because clients learn at different times that the pod
//! is being deleted. But each response is the last one on its connection, so no connection is open when the app stops.
//! Once the app has stopped, the agent closes the proxy port, because the app's port is closed, too.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio_util::sync::CancellationToken;

/// Whether the agent is leaving, and whether the app has stopped.
#[derive(Debug, Default)]
pub struct Leaving {
    /// The same state as `begun`, for a read in every request: reading the token would take a lock.
    flag: AtomicBool,
    begun: CancellationToken,
    /// Cancelled when the proxy port is closed, even if `begin` was never called.
    pub closed: CancellationToken,
}

impl Leaving {
    /// Makes each later response of a proxy the last one on its connection.
    pub fn begin(&self) {
        self.flag.store(true, Relaxed);
        self.begun.cancel();
    }

    /// Whether `begin` was called.
    pub fn has_begun(&self) -> bool {
        self.flag.load(Relaxed)
    }

    /// Returns once `begin` was called.
    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }
}
