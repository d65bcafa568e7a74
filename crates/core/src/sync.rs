//! The synchronisation that this crate uses. Under `--cfg loom` it is loom's, so that the tests in `tests/loom.rs`
//! explore every interleaving of the very code that ships.

#[cfg(loom)]
mod explored;

use std::sync::OnceLock;

#[cfg(loom)]
pub(crate) use self::explored::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

/// How many slots a limit has whose threads get in each other's way: one for each core, and at least two.
pub(crate) fn slots() -> usize {
    static SLOTS: OnceLock<usize> = OnceLock::new();
    if cfg!(loom) {
        return 2;
    }
    *SLOTS.get_or_init(|| std::thread::available_parallelism().map_or(2, usize::from).next_power_of_two().max(2))
}

#[cfg(not(loom))]
thread_local! {
    /// Which slot this thread uses; beyond all of them before it has one.
    static SLOT: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// The slot of this thread: threads are numbered as they come.
#[cfg(not(loom))]
pub(crate) fn own_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if known_slot() == usize::MAX {
        // The number of slots is a power of two.
        SLOT.set(NEXT.fetch_add(1, Ordering::Relaxed) & (slots() - 1));
    }
    known_slot()
}

/// The same if [`own_slot`] was asked before, and else none that there is.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn known_slot() -> usize {
    SLOT.get()
}

/// Loom runs all its threads on one of the system's. The last digit of their number tells them apart, and is the same
/// whenever the same threads run: their hash is not.
#[cfg(loom)]
pub(crate) fn own_slot() -> usize {
    let thread = format!("{:?}", loom::thread::current().id());
    thread.bytes().rev().find(u8::is_ascii_digit).map_or(0, usize::from) % 2
}

#[cfg(loom)]
pub(crate) fn known_slot() -> usize {
    own_slot()
}

/// Locks, also after a panic elsewhere: what these locks guard is whole at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A place that is filled once and never changes: `OnceLock`. Loom has none; there, an atomic flag beside it stands for
/// the ordering that `OnceLock` gives, and for no more.
#[derive(Debug)]
pub(crate) struct Once<T> {
    value: OnceLock<T>,
    #[cfg(loom)]
    filled: AtomicBool,
}

impl<T> Once<T> {
    pub(crate) fn empty() -> Self {
        Self {
            value: OnceLock::new(),
            #[cfg(loom)]
            filled: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        #[cfg(loom)]
        if !self.filled.load(Ordering::Acquire) {
            return None;
        }
        self.value.get()
    }

    /// Fills the place unless another thread did; it is filled when this returns.
    pub(crate) fn fill(&self, value: T) {
        // The loser's value is not needed.
        drop(self.value.set(value));
        #[cfg(loom)]
        self.filled.store(true, Ordering::Release);
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.value.take()
    }
}
