//! The buffer that keys are written to: one for each thread, so that requests do not allocate.

use std::cell::Cell;

/// A larger buffer, after a long key, is not kept.
const KEEP: usize = 4096;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lends an empty buffer. A nested call gets a new one.
pub(super) fn with_buffer<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let mut buffer = BUFFER.take();
    buffer.clear();
    let result = work(&mut buffer);
    if buffer.capacity() <= KEEP {
        BUFFER.set(buffer);
    }
    result
}
