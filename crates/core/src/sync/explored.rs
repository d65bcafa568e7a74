//! Loom's `AtomicU64`, with an option to turn every load and store into a read-modify-write.
//!
//! Loom remembers only the last access to a word. A thread that loads a word and then writes it hides earlier loads of
//! other threads, and loom never explores the write before such a load. So with plain loads, loom does not find that a
//! key's cell can go to another key between the load of its mark and the load of its level. Loom does not forget
//! read-modify-writes in this way. However, a read-modify-write always reads the newest value, and a load can read an
//! older value. So the tests run both ways: `WEIR_LOOM_LOADS` is `plain` or `writes`. Stores are included, because loom
//! does not order them among the read-modify-writes of other threads.

use std::sync::OnceLock;

use super::Ordering;

#[derive(Debug, Default)]
pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

/// Returns true if loads and stores are read-modify-writes in this run.
fn loads_write() -> bool {
    static WRITE: OnceLock<bool> = OnceLock::new();
    *WRITE.get_or_init(|| match std::env::var("WEIR_LOOM_LOADS").as_deref() {
        Ok("writes") => true,
        Ok("plain") | Err(std::env::VarError::NotPresent) => false,
        other => panic!("WEIR_LOOM_LOADS is {other:?}: set it to plain or writes"),
    })
}

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        if !loads_write() {
            return self.0.load(order);
        }
        let order = match order {
            Ordering::Acquire => Ordering::AcqRel,
            order => order,
        };
        self.0.fetch_or(0, order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        if !loads_write() {
            return self.0.store(value, order);
        }
        let order = match order {
            Ordering::Release => Ordering::AcqRel,
            order => order,
        };
        self.0.swap(value, order);
    }

    pub(crate) fn compare_exchange(&self, from: u64, to: u64, done: Ordering, failed: Ordering) -> Result<u64, u64> {
        self.0.compare_exchange(from, to, done, failed)
    }

    pub(crate) fn compare_exchange_weak(
        &self,
        from: u64,
        to: u64,
        done: Ordering,
        failed: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange_weak(from, to, done, failed)
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }

    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_sub(value, order)
    }

    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_max(value, order)
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
}
