//! Tracks whether the client of an HTTP/2 stream reads its response.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::task_local;

task_local! {
    /// The reading state of the stream that the current task serves.
    pub(super) static TAKING: Arc<ReadProgress>;
}

/// Counts the progress of a client that reads its response. The counter grows with each frame of the body, and with the
/// first poll for the next frame. So it is odd while the client has to read.
#[derive(Debug, Default)]
pub(super) struct ReadProgress(AtomicU64);

impl ReadProgress {
    /// The state of the current stream; `None` over HTTP/1.
    pub(super) fn current() -> Option<Arc<Self>> {
        TAKING.try_with(Arc::clone).ok()
    }

    /// Records that hyper polled for more data, because the window is open.
    pub(super) fn asked(&self) {
        if self.waits().is_some() {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Records that hyper got a frame of the body.
    pub(super) fn given(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// The counter, while the client has to read; otherwise `None`.
    pub(super) fn waits(&self) -> Option<u64> {
        Some(self.0.load(Relaxed)).filter(|count| count % 2 == 1)
    }
}
