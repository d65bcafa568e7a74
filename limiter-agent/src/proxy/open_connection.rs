//! One open client connection: its counters, and whether it must close.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio_util::task::task_tracker::TaskTrackerToken;
use weir_client::agent::{ConnectionSlot, Eviction, Rank};
use weir_core::Time;

use super::{state::Proxy, traffic::WorkerCounts};

/// The time for which a client that closed its sending side stays connected while nothing is written. A write would
/// show whether the client has disconnected.
pub(super) const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(5);

/// One open client connection, which can become a tunnel.
#[derive(Debug)]
pub(super) struct OpenConnection {
    pub(super) proxy: Arc<Proxy>,
    /// The counters of the worker that serves the connection.
    pub(super) worker: Arc<WorkerCounts>,
    /// `None` for a connection that was in the accept queue when the drain began.
    slot: Option<ConnectionSlot>,
    /// The drain waits until this token is dropped.
    _tracked: TaskTrackerToken,
}

impl OpenConnection {
    pub(super) fn new(
        proxy: &Arc<Proxy>,
        worker: &Arc<WorkerCounts>,
        slot: Option<ConnectionSlot>,
        tracked: TaskTrackerToken,
    ) -> Arc<Self> {
        proxy.connections.fetch_add(1, Relaxed);
        proxy.traffic.accept();
        Arc::new(Self { proxy: Arc::clone(proxy), worker: Arc::clone(worker), slot, _tracked: tracked })
    }

    /// Marks the connection as idle, so that it can be evicted.
    pub(super) fn set_idle(&self, now: Time) {
        if let Some(slot) = &self.slot {
            slot.rest(Rank::Idle, now);
        }
    }

    /// Marks the connection as one that sends the head of a request slowly. Such connections are evicted first.
    pub(super) fn begin_slowly(&self, now: Time) {
        if let Some(slot) = &self.slot {
            slot.rest(Rank::Silent, now);
        }
    }

    /// Marks the connection as busy. Returns false if it was evicted and must close immediately. An evicted connection
    /// that is allowed to close gracefully answers the request first.
    pub(super) fn set_busy(&self) -> bool {
        self.slot.as_ref().is_none_or(ConnectionSlot::work)
    }

    /// Whether the connection was evicted.
    pub(super) fn eviction(&self) -> Eviction {
        self.slot.as_ref().map_or(Eviction::No, ConnectionSlot::eviction)
    }

    pub(super) fn is_evicted(&self) -> bool {
        self.eviction() != Eviction::No
    }

    /// Returns once the connection was evicted.
    pub(super) async fn evicted(&self) {
        match &self.slot {
            Some(slot) => slot.gone().await,
            None => std::future::pending().await,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.proxy.connections.fetch_sub(1, Relaxed);
    }
}
