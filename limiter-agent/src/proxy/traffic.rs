//! Client connections and requests by protocol: counted as they come and go, read by the metrics.
//!
//! Whatever is open holds a guard, so that no way out forgets to count.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// What a client connection speaks. One that is upgraded was HTTP/1 before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
    WebSocket,
    /// Upgraded to something else, which is copied blindly.
    Tunnel,
}

impl Protocol {
    pub(crate) const ALL: [Self; 4] = [Self::Http1, Self::Http2, Self::WebSocket, Self::Tunnel];

    /// As it stands in labels.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::WebSocket => "websocket",
            Self::Tunnel => "tunnel",
        }
    }
}

/// What all workers count together.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    accepted: AtomicU64,
    parked: AtomicU64,
    each: [Counts; Protocol::ALL.len()],
    workers: Mutex<Vec<Arc<OfWorker>>>,
}

/// What one worker counts of HTTP/1.1 on the short way, where a request would feel a count that all of them share. Nobody
/// else writes to it, so nothing has to be locked for it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct OfWorker {
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

/// What was counted of one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spoken {
    pub(crate) requests: u64,
    /// Connections open now.
    pub(crate) open: u64,
    /// Connections so far.
    pub(crate) opened: u64,
}

/// A connection counts as open while this lives.
#[derive(Debug)]
pub(super) struct Speaking {
    traffic: Arc<Traffic>,
    protocol: Protocol,
}

/// A connection counts as parked while this lives.
#[derive(Debug)]
pub(super) struct Parked<'a>(&'a Traffic);

/// The same, counted by one worker.
#[derive(Debug)]
pub(super) struct ParkedHere<'a>(&'a OfWorker);

impl Traffic {
    pub(super) fn accept(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(super) fn request(&self, protocol: Protocol) {
        self.each[protocol as usize].requests.fetch_add(1, Relaxed);
    }

    /// To be called once it is known what a connection speaks.
    pub(super) fn speaking(self: &Arc<Self>, protocol: Protocol) -> Speaking {
        let counts = &self.each[protocol as usize];
        counts.open.fetch_add(1, Relaxed);
        counts.opened.fetch_add(1, Relaxed);
        Speaking { traffic: Arc::clone(self), protocol }
    }

    /// For a connection that is put away: nothing is asked on it, and nothing is held for it.
    pub(super) fn park(&self) -> Parked<'_> {
        self.parked.fetch_add(1, Relaxed);
        Parked(self)
    }

    /// For one more worker, which alone may count with it.
    pub(super) fn worker(&self) -> Arc<OfWorker> {
        let worker = Arc::default();
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&worker));
        worker
    }

    /// Of all workers.
    fn sum(&self, of: impl Fn(&OfWorker) -> &AtomicU64) -> u64 {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        workers.iter().map(|worker| of(worker).load(Relaxed)).sum()
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Relaxed)
    }

    /// Connections that are put away now.
    pub(crate) fn parked(&self) -> u64 {
        self.parked.load(Relaxed) + self.sum(|worker| &worker.parked)
    }

    pub(crate) fn spoken(&self, protocol: Protocol) -> Spoken {
        let Counts { requests, open, opened } = &self.each[protocol as usize];
        let short = if protocol == Protocol::Http1 { self.sum(|worker| &worker.requests) } else { 0 };
        Spoken { requests: requests.load(Relaxed) + short, open: open.load(Relaxed), opened: opened.load(Relaxed) }
    }
}

impl OfWorker {
    pub(super) fn request(&self) {
        set(&self.requests, |requests| requests + 1);
    }

    /// As [`Traffic::park`].
    pub(super) fn park(&self) -> ParkedHere<'_> {
        set(&self.parked, |parked| parked + 1);
        ParkedHere(self)
    }
}

/// By the only one who does.
fn set(count: &AtomicU64, to: impl Fn(u64) -> u64) {
    count.store(to(count.load(Relaxed)), Relaxed);
}

impl Drop for Speaking {
    fn drop(&mut self) {
        self.traffic.each[self.protocol as usize].open.fetch_sub(1, Relaxed);
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.0.parked.fetch_sub(1, Relaxed);
    }
}

impl Drop for ParkedHere<'_> {
    fn drop(&mut self) {
        set(&self.0.parked, |parked| parked - 1);
    }
}
