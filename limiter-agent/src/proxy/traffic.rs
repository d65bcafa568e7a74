//! Counts client connections and requests by protocol, for the metrics.
//!
//! Each open connection holds a guard, so that its end is counted on every code path.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// The protocol of a client connection. An upgraded connection was HTTP/1 before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    WebSocket,
    /// Upgraded to another protocol, and copied without parsing.
    Tunnel,
}

impl Protocol {
    pub(crate) const ALL: [Self; 4] = [Self::Http1, Self::Http2, Self::WebSocket, Self::Tunnel];

    /// The label's value.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::WebSocket => "websocket",
            Self::Tunnel => "tunnel",
        }
    }
}

/// The counters that all workers share.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    accepted: AtomicU64,
    each: [Counts; Protocol::ALL.len()],
    workers: Mutex<Vec<Arc<WorkerCounts>>>,
}

/// The counters of one worker: its parked connections, and the requests on the short path, where a shared counter would
/// cost measurable time. Only this worker writes to them, so no locked instruction is needed.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct WorkerCounts {
    requests: AtomicU64,
    parked: AtomicU64,
}

/// Aligned so that two protocols never share a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    requests: AtomicU64,
    open: AtomicU64,
    opened: AtomicU64,
}

/// The counts of one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolCounts {
    pub(crate) requests: u64,
    /// Connections open now.
    pub(crate) open: u64,
    /// Connections so far.
    pub(crate) opened: u64,
}

/// Counts a connection as open until this value is dropped.
#[derive(Debug)]
pub(super) struct OpenConnectionCount {
    traffic: Arc<Traffic>,
    protocol: Protocol,
}

/// Counts a connection as parked until this value is dropped.
#[derive(Debug)]
pub(super) struct Parked<'a>(&'a WorkerCounts);

impl Traffic {
    pub(super) fn accept(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(super) fn request(&self, protocol: Protocol) {
        self.each[protocol as usize].requests.fetch_add(1, Relaxed);
    }

    /// Counts a connection whose protocol is known.
    pub(super) fn open(self: &Arc<Self>, protocol: Protocol) -> OpenConnectionCount {
        let counts = &self.each[protocol as usize];
        counts.open.fetch_add(1, Relaxed);
        counts.opened.fetch_add(1, Relaxed);
        OpenConnectionCount { traffic: Arc::clone(self), protocol }
    }

    /// Creates the counters of one worker. Only this worker is allowed to change them.
    pub(super) fn worker(&self) -> Arc<WorkerCounts> {
        let worker = Arc::default();
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&worker));
        worker
    }

    /// The sum over all workers.
    fn sum(&self, of: impl Fn(&WorkerCounts) -> &AtomicU64) -> u64 {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().map(|worker| of(worker).load(Relaxed)).sum()
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// Connections that are parked now.
    pub(crate) fn parked(&self) -> u64 {
        self.sum(|worker| &worker.parked)
    }

    pub(crate) fn counts(&self, protocol: Protocol) -> ProtocolCounts {
        let Counts { requests, open, opened } = &self.each[protocol as usize];
        let short = if protocol == Protocol::Http1 { self.sum(|worker| &worker.requests) } else { 0 };
        ProtocolCounts {
            requests: requests.load(Relaxed) + short,
            open: open.load(Relaxed),
            opened: opened.load(Relaxed),
        }
    }
}

impl WorkerCounts {
    pub(super) fn request(&self) {
        set(&self.requests, |requests| requests + 1);
    }

    /// Counts a connection that is idle and has no buffers.
    pub(super) fn park(&self) -> Parked<'_> {
        set(&self.parked, |parked| parked + 1);
        Parked(self)
    }
}

/// Changes a counter that only this worker writes.
fn set(count: &AtomicU64, to: impl Fn(u64) -> u64) {
    count.store(to(count.load(Relaxed)), Relaxed);
}

impl Drop for OpenConnectionCount {
    fn drop(&mut self) {
        self.traffic.each[self.protocol as usize].open.fetch_sub(1, Relaxed);
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        set(&self.0.parked, |parked| parked - 1);
    }
}
