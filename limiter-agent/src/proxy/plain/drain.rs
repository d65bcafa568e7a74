//! That the drain has begun, as the connections of one worker learn of it.
//!
//! A connection asks for nothing but a flag with each request. It may only be raised by the thread that the connections
//! are on: then none can miss it between looking at the flag and going to sleep.

use std::cell::Cell;

use tokio::sync::{Notify, futures::Notified};

#[derive(Debug, Default)]
pub(super) struct Drain {
    begun: Cell<bool>,
    tell: Notify,
}

impl Drain {
    pub(super) fn begin(&self) {
        self.begun.set(true);
        self.tell.notify_waiters();
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Wakes the task that has polled it once, when the drain begins.
    pub(super) fn wakes(&self) -> Notified<'_> {
        self.tell.notified()
    }
}
