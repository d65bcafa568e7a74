//! That clients are to be sent away, as the connections of one worker learn of it: the drain has begun, or the app takes no
//! connections for now.
//!
//! A connection asks for nothing but a flag with each request. It may only be raised by the thread that the connections
//! are on: then none can miss it between looking at the flag and going to sleep.

use std::cell::Cell;

use tokio::sync::{Notify, futures::Notified};

#[derive(Debug, Default)]
pub(super) struct Drain {
    begun: Cell<bool>,
    /// How often it has begun: who was woken once has to ask for it again.
    times: Cell<u32>,
    tell: Notify,
}

impl Drain {
    pub(super) fn begin(&self) {
        self.begun.set(true);
        self.times.set(self.times.get().wrapping_add(1));
        self.tell.notify_waiters();
    }

    /// The app is back.
    pub(super) fn call_off(&self) {
        self.begun.set(false);
    }

    pub(super) fn times(&self) -> u32 {
        self.times.get()
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Wakes the task that has polled it once, when the drain begins.
    pub(super) fn wakes(&self) -> Notified<'_> {
        self.tell.notified()
    }
}
