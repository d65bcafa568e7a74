//! Flat combining: each thread puts its question into a slot of its own, and whoever gets the turn answers all of them,
//! so that the state stays on one core for many decisions. Nobody asks and goes away: a thread waits for its answer.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use weir_core::Time;

use super::Bucket;

/// As many threads as can take part.
const SLOTS: usize = 8;

/// Turns of waiting before the one who answers is given the core.
const SPINS: u32 = 128;

const ADMITTED: u64 = 1;
const REFUSED: u64 = 2;
/// A question is the time with this bit; no answer has it.
const ASKED: u64 = 1 << 63;

/// A cache line, and the one that is fetched along with it, to itself.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(AtomicU64);

#[derive(Debug)]
pub(crate) struct CombiningBucket {
    bucket: Bucket,
    turn: AtomicBool,
    /// Only read and written by the one whose turn it is.
    arrival: AtomicU64,
    slots: [Slot; SLOTS],
}

impl CombiningBucket {
    pub(crate) fn new(now: Time, interval: Duration, burst: u32) -> Self {
        Self {
            bucket: Bucket::new(interval, burst),
            turn: AtomicBool::new(false),
            arrival: AtomicU64::new(now.as_nanos()),
            slots: std::array::from_fn(|_| Slot::default()),
        }
    }

    /// `thread` is below 8, and of no other thread.
    pub(crate) fn take(&self, thread: usize, now: Time) -> bool {
        let mine = &self.slots[thread].0;
        mine.store(ASKED | now.as_nanos(), Ordering::Release);
        let mut spins = 0;
        loop {
            let word = mine.load(Ordering::Acquire);
            if word & ASKED == 0 {
                return word == ADMITTED;
            }
            if !self.turn.load(Ordering::Relaxed) && !self.turn.swap(true, Ordering::Acquire) {
                self.answer_all();
                self.turn.store(false, Ordering::Release);
            } else if spins < SPINS {
                spins += 1;
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    fn answer_all(&self) {
        let mut arrival = self.arrival.load(Ordering::Relaxed);
        for Slot(slot) in &self.slots {
            let word = slot.load(Ordering::Acquire);
            if word & ASKED != 0 {
                let after = self.bucket.after(arrival, Time::from_nanos(word & !ASKED));
                arrival = after.unwrap_or(arrival);
                slot.store(if after.is_some() { ADMITTED } else { REFUSED }, Ordering::Release);
            }
        }
        self.arrival.store(arrival, Ordering::Relaxed);
    }
}
