//! The requests on one connection of the agent's own ports, which decide how soon the connection can be evicted.

use std::sync::{Arc, Mutex, PoisonError};

use weir_tower::MonotonicClock;

use crate::slots::{ConnectionSlot, Rank};

/// The requests that are being answered on one connection.
#[derive(Debug)]
pub struct Requests {
    slot: ConnectionSlot,
    clock: MonotonicClock,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    reading: usize,
    writing: usize,
}

/// A request that is being answered. Dropping this value ends the request.
#[derive(Debug)]
pub struct Answering {
    requests: Arc<Requests>,
    writes: bool,
}

impl Requests {
    /// No request is being answered yet.
    pub fn new(slot: ConnectionSlot, clock: MonotonicClock) -> Arc<Self> {
        Arc::new(Self { slot, clock, open: Mutex::default() })
    }

    /// Returns when the connection was evicted.
    pub async fn evicted(&self) {
        self.slot.gone().await;
    }

    /// Begins a request of an accepted client. `writes` is true if the request changes something.
    pub fn begin(self: &Arc<Self>, writes: bool) -> Answering {
        self.change(|open| if writes { open.writing += 1 } else { open.reading += 1 });
        Answering { requests: Arc::clone(self), writes }
    }

    /// Counts bytes that the requests hold in memory.
    pub fn hold(&self, bytes: usize) {
        self.slot.hold(bytes);
    }

    /// The requests hold these bytes no longer.
    pub fn release(&self, bytes: usize) {
        self.slot.release(bytes);
    }

    /// Whether all connections of the port hold more than `most` bytes. Then the heaviest one is evicted.
    pub fn is_over(&self, most: usize) -> bool {
        self.slot.is_over(most)
    }

    fn change(&self, change: impl FnOnce(&mut Open)) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut open);
        let rank = match *open {
            Open { reading: 0, writing: 0 } => Rank::Idle,
            Open { writing: 0, .. } => Rank::Reading,
            Open { .. } => Rank::Writing,
        };
        self.slot.rest(rank, self.clock.now());
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.requests.change(|open| if self.writes { open.writing -= 1 } else { open.reading -= 1 });
    }
}
