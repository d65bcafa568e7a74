//! Flat combining: each thread writes its request into its own slot, and the thread that holds the lock answers all of
//! them, so that the state stays on one core for many decisions. A thread always waits for its answer.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use weir_core::Time;

use super::Bucket;

/// The number of threads that can take part.
const SLOTS: usize = 8;

/// Turns of waiting before a thread yields to the thread that answers.
const SPINS: u32 = 128;

const ADMITTED: u64 = 1;
const REFUSED: u64 = 2;
/// A request is the time with this bit; no answer has it.
const ASKED: u64 = 1 << 63;

/// Aligned to two cache lines, because some processors fetch two together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(AtomicU64);

#[derive(Debug)]
pub(crate) struct CombiningBucket {
    bucket: Bucket,
    turn: AtomicBool,
    /// Only read and written by the thread that holds the lock.
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

    /// `thread` is below 8 and unique.
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
