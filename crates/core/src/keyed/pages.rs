//! Large pages for a large table: advice to the system. No decision depends on it.
//!
//! A decision on one of a million keys reads a random cache line. With pages of 4 KiB, the processor must first look up
//! the page of that line; in a virtual machine this walks two sets of page tables. Measured in a virtual machine, on
//! one thread of a busy machine, with 1,000,000 keys of 8 bytes: 14 and 21 % more decisions a second with uniform keys,
//! 8 and 27 % with Zipf-distributed keys. The price is memory while few keys are in use: keys are spread over the
//! table, so 10,000 keys touch nine tenths of the small pages of a table for 1,000,000, but 100 keys touch 400 KiB, and
//! all 16 MiB with large pages.
//!
//! This is the only unsafe code in this crate: the standard library cannot give this advice. It is sound because the
//! range lies within memory that the caller owns exclusively, and `MADV_HUGEPAGE` changes neither contents nor validity
//! of any address. There is no atomic here for loom to explore, and miri, which does not support the call, skips it.

/// Asks for large pages for the part of `words` that has whole ones. Call it before any of the memory is touched.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
#[expect(unsafe_code, reason = "no safe function of the standard library gives advice on memory")]
pub(super) fn ask_for_large(words: &mut [u64]) {
    use std::ffi::{c_int, c_void};

    /// The size on x86-64, and on aarch64 with small pages of 4 KiB. Where the size differs, the system uses what fits.
    const LARGE: usize = 2 << 20;

    /// Below this size there is little to gain: the processor caches the addresses of some hundred to some thousand
    /// small pages.
    const LEAST: usize = 2 * LARGE;

    const MADV_HUGEPAGE: c_int = 14;

    // A function of the C library, which the standard library links anyway.
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
    // SAFETY: `before + whole <= length`, so the range lies within `words`, which is borrowed exclusively; the advice
    // changes no contents. On an error the advice is not followed, and nothing else is different.
    let _ = unsafe { madvise(start.add(before).cast(), whole, MADV_HUGEPAGE) };
}

/// On other systems, the system decides.
#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
pub(super) fn ask_for_large(_words: &mut [u64]) {}
