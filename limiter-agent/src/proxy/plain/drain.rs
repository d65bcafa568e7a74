//! Notifies the connections of one worker that clients must reconnect elsewhere, because the drain began or the app
//! refuses connections.
//!
//! A connection only reads a flag for each request. Only the thread of the connections sets the flag, so no connection
//! can miss a change between reading the flag and waiting.

use std::cell::Cell;

use tokio::sync::{Notify, futures::Notified};

#[derive(Debug, Default)]
pub(super) struct Drain {
    begun: Cell<bool>,
    /// The number of times that the flag was set. A task that was woken must register again.
    times: Cell<u32>,
    tell: Notify,
}

impl Drain {
    pub(super) fn begin(&self) {
        self.begun.set(true);
        self.times.set(self.times.get().wrapping_add(1));
        self.tell.notify_waiters();
    }

    /// Clears the flag, because the app accepts connections again.
    pub(super) fn call_off(&self) {
        self.begun.set(false);
    }

    pub(super) fn times(&self) -> u32 {
        self.times.get()
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Returns a future that completes when the flag is set.
    pub(super) fn wakes(&self) -> Notified<'_> {
        self.tell.notified()
    }
}
