//! The statistics of a store client. The counters never decrease.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(crate) struct Stats {
    trips: AtomicU64,
    prefetched: AtomicU64,
    returned: AtomicU64,
    lost: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Questions that were sent to the store.
    pub trips: u64,
    /// Seats that the store handed out in advance.
    pub prefetched: u64,
    /// Seats that were given back to the store.
    pub returned: u64,
    /// Seats that expired or were dropped unused.
    pub lost: u64,
}

impl Stats {
    pub(crate) fn count_trip(&self) {
        self.trips.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_prefetched(&self, seats: u32) {
        self.prefetched.fetch_add(seats.into(), Relaxed);
    }

    pub(crate) fn count_returned(&self, seats: u32) {
        self.returned.fetch_add(seats.into(), Relaxed);
    }

    pub(crate) fn count_lost_seats(&self, seats: u32) {
        self.lost.fetch_add(seats.into(), Relaxed);
    }

    pub(crate) fn read(&self) -> StoreStats {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        StoreStats {
            trips: read(&self.trips),
            prefetched: read(&self.prefetched),
            returned: read(&self.returned),
            lost: read(&self.lost),
        }
    }
}
