//! The state of the proxy that the workers and the rest of the agent share.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize},
};

use tokio_util::sync::CancellationToken;
use weir_client::agent::{ConnectionSlots, Leaving};
use weir_enforce::{LiveRules, histogram::Histogram};
use weir_tower::MonotonicClock;

use super::{
    app::{AppAddress, FailureCounts},
    settings::Settings,
    stalled_uploads::StalledUploads,
    traffic::Traffic,
};

/// The state that all workers share.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) upstream: Arc<AppAddress>,
    pub(crate) settings: Settings,
    pub(crate) rules: LiveRules,
    pub(crate) clock: MonotonicClock,
    pub(crate) failures: Arc<FailureCounts>,
    /// The times from the beginning of a request to the app, with the time of an upload, until its response
    /// begins.
    pub(crate) upstream_time: Arc<Histogram>,
    /// Client connections open now.
    pub(crate) connections: AtomicU64,
    pub(crate) traffic: Arc<Traffic>,
    /// One slot for each client connection that can be served at the same time.
    pub(crate) slots: Arc<ConnectionSlots>,
    /// The bytes of all incomplete heads (see `hyper::partial_head`).
    pub(crate) partial_heads: AtomicUsize,
    /// The uploads that the app does not read.
    pub(crate) stalled_uploads: Arc<StalledUploads>,
    /// While leaving, each response is the last one on its connection.
    pub(crate) leaving: Arc<Leaving>,
    /// Cancelled to stop accepting connections and finish requests in flight.
    pub(crate) drain: CancellationToken,
    /// Cancelled to end connections that would not end by themselves.
    pub(crate) stop: CancellationToken,
    /// Cancelled to close all connections immediately.
    pub(crate) abort: CancellationToken,
}
