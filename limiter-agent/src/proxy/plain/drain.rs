//! Tells the connections of one worker that clients must reconnect elsewhere: the drain began, or the app refuses
//! connections.
//!
//! A connection only reads a flag for each request. Only the connections' own thread may set it, so no connection can
//! miss it between reading the flag and going to sleep.

use std::cell::Cell;

use tokio::sync::{Notify, futures::Notified};

#[derive(Debug, Default)]
pub(super) struct Drain {
    begun: Cell<bool>,
    /// How often the flag was set. A task that was woken once must register again.
    times: Cell<u32>,
    tell: Notify,
}

impl Drain {
    pub(super) fn begin(&self) {
        self.begun.set(true);
        self.times.set(self.times.get().wrapping_add(1));
        self.tell.notify_waiters();
    }

    /// Clears the flag: the app is back.
    pub(super) fn call_off(&self) {
        self.begun.set(false);
    }

    pub(super) fn times(&self) -> u32 {
        self.times.get()
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Wakes the task that polled this once when the flag is set.
    pub(super) fn wakes(&self) -> Notified<'_> {
        self.tell.notified()
    }
}
