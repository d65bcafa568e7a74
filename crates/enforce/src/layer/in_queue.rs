//! Whether a request waits in a queue, for the server that holds its connection.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Shows a server whether a request waits in the queue of a rule.
///
/// A server adds a clone of this value to the extensions of a request. The [`LimitLayer`](super::LimitLayer) sets the
/// value while the request is in a queue. So the server can end a request whose client seems to have left, before the
/// request takes capacity. If a request is dropped in the queue, the value stays set until the server clears it.
#[derive(Clone, Debug, Default)]
pub struct InQueue(Arc<AtomicBool>);

impl InQueue {
    /// Whether the request waits in a queue.
    pub fn get(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Clears the value, before the next request of a connection.
    pub fn clear(&self) {
        self.set(false);
    }

    pub(super) fn set(&self, is_queued: bool) {
        self.0.store(is_queued, Relaxed);
    }
}
