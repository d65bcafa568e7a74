//! The synchronisation primitives of this crate. Under `--cfg loom` they are loom's, so that `tests/loom.rs` explores
//! every interleaving of the released code.

#[cfg(loom)]
mod explored;

use std::sync::OnceLock;
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use self::explored::AtomicU64;

/// Returns the number of slots of a contended limit: one for each core, and at least two.
pub(crate) fn slots() -> usize {
    static SLOTS: OnceLock<usize> = OnceLock::new();
    if cfg!(loom) {
        return 2;
    }
    *SLOTS.get_or_init(|| std::thread::available_parallelism().map_or(2, usize::from).next_power_of_two().max(2))
}

#[cfg(not(loom))]
thread_local! {
    /// The slot of this thread, or `usize::MAX` for a thread without a slot.
    static SLOT: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

/// Returns the slot of this thread. Threads are numbered in order of their first call.
#[cfg(not(loom))]
pub(crate) fn own_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if known_slot() == usize::MAX {
        // The number of slots is a power of two.
        SLOT.set(NEXT.fetch_add(1, Ordering::Relaxed) & (slots() - 1));
    }
    known_slot()
}

/// Returns this thread's slot if the thread has called [`own_slot`]. Otherwise, returns a slot that does not exist.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn known_slot() -> usize {
    SLOT.get()
}

/// Returns the slot of a loom thread. Loom runs all its threads on one system thread. The last digit of a loom thread's
/// number is the same in every run, but the hash of its id is not.
#[cfg(loom)]
pub(crate) fn own_slot() -> usize {
    let thread = format!("{:?}", loom::thread::current().id());
    thread.bytes().rev().find(u8::is_ascii_digit).map_or(0, usize::from) % 2
}

#[cfg(loom)]
pub(crate) fn known_slot() -> usize {
    own_slot()
}

/// Locks a mutex, even after a panic of another thread: the guarded data is consistent at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A value that is set once and never changes, like `OnceLock`, which loom does not have. Under loom, an atomic flag
/// provides exactly the ordering of `OnceLock`.
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

    /// Sets the value unless another thread has set it. The value is set when this function returns.
    pub(crate) fn fill(&self, value: T) {
        // The losing thread's value is dropped.
        drop(self.value.set(value));
        #[cfg(loom)]
        self.filled.store(true, Ordering::Release);
    }
}
