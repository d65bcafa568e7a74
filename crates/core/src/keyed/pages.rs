//! Large pages for a large table: advice to the system. No decision depends on this advice.
//!
//! A decision on one of a million keys reads a random cache line. With pages of 4 KiB, the processor must first look up
//! the page of that line. In a virtual machine, this lookup walks two sets of page tables. Measurements used one thread
//! of a busy virtual machine and 1,000,000 keys of 8 bytes. Large pages gave 14 and 21 % more decisions a second with
//! uniform keys, and 8 and 27 % more with Zipf-distributed keys. The price is memory while few keys are in use, because
//! keys are spread over the table. In a table for 1,000,000 keys, 100 keys touch 400 KiB of small pages, but all 16 MiB
//! of large pages. With 10,000 keys there is little difference: they touch nine tenths of the small pages.
//!
//! This module has the only unsafe code in this crate, because the standard library cannot give this advice. The call
//! is sound: the range is within memory that the caller owns exclusively, and `MADV_HUGEPAGE` changes neither the
//! contents nor the validity of any address. Loom and miri skip the call: it uses no atomics, and miri does not support
//! it.

/// Requests large pages for the part of `words` that consists of whole large pages. Call this before any of the memory
/// is touched.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
#[expect(unsafe_code, reason = "no safe function of the standard library gives advice on memory")]
pub(super) fn ask_for_large(words: &mut [u64]) {
    use std::ffi::{c_int, c_void};

    /// The size of a large page on x86-64, and on aarch64 with small pages of 4 KiB. On other systems, the system uses
    /// the pages that fit.
    const LARGE: usize = 2 << 20;

    /// The least size for large pages. Below this size there is little gain, because the processor caches the addresses
    /// of some hundred to some thousand small pages.
    const LEAST: usize = 2 * LARGE;

    const MADV_HUGEPAGE: c_int = 14;

    // A function of the C library, which the standard library always links.
    unsafe extern "C" {
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    let length = size_of_val(words);
    let start = words.as_mut_ptr().cast::<u8>();
    let before = start.align_offset(LARGE);
    if length < LEAST || before >= length {
        return;
    }
    let whole = (length - before) / LARGE * LARGE;
    // SAFETY: `before + whole <= length`, so the range is within `words`, which is borrowed exclusively. The advice
    // changes no contents. If the call fails, the system ignores the advice, and nothing else is different.
    let _ = unsafe { madvise(start.add(before).cast(), whole, MADV_HUGEPAGE) };
}

/// Does nothing: other systems select the pages themselves.
#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
pub(super) fn ask_for_large(_words: &mut [u64]) {}
