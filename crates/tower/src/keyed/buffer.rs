//! The buffer for the key of a request: one for each thread, so that requests do not allocate.

use std::cell::Cell;

/// The largest capacity, in bytes, that a thread keeps after a long key.
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
