//! The request and the time that a decision depends on.

use std::time::Duration;

use weir_seats::StoreTime;

/// A store's clock can be slower than the program's by less than this part.
const SLOWER: u32 = 4_000;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRequest {
    /// The hash of the key.
    pub(super) hash: u128,
    pub(super) cost: u32,
    /// The longest time that the request can wait.
    pub(super) patience: Duration,
}

/// The time of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// The program's time.
    pub(super) now: Duration,
    /// The store's time. None before the first answer.
    pub(super) time: Option<StoreTime>,
    /// The number of the current loss. None if the store is not lost.
    pub(super) lost: Option<u64>,
}

/// What both clocks show at the time of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clocks {
    /// The program's time.
    pub(super) now: Duration,
    /// The store's time.
    pub(super) time: StoreTime,
}

impl Moment {
    /// Both clocks. None before the first answer of the store.
    pub(super) fn clocks(&self) -> Option<Clocks> {
        self.time.map(|time| Clocks { now: self.now, time })
    }
}

/// The time that can pass here at most while the store's clock, which can be slower, advances by `time`.
pub(super) fn slowest(time: Duration) -> Duration {
    time + time / SLOWER
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}
