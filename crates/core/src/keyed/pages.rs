//! Large pages for a large table: advice to the system, and never anything that a decision depends on.
//!
//! A decision on one of a million keys reads one cache line at random. On pages of 4 KiB the processor has to find out first
//! where the page of that line is, which in a virtual machine takes a walk through two sets of tables. Measured there, on one
//! thread and a busy machine, with 1,000,000 keys of 8 bytes: 14 and 21 % more decisions a second on uniform keys, 8 and 27 % on
//! Zipf's. The price is memory where few of the keys have come: keys fall anywhere in the table, so 10,000 of them touch nine
//! tenths of the small pages of a table for 1,000,000, but 100 touch 400 KiB, where large pages are all 16 MiB.
//!
//! This is the one place of this crate with unsafe code, for the standard library cannot give this advice. What keeps it
//! sound: the range lies within memory that the caller has for itself, and `MADV_HUGEPAGE` changes neither contents nor
//! validity of any address. There is no atomic here for loom to explore, and miri, which does not know the call, is spared it.

/// Asks for large pages in the middle of `words`, where whole ones fit. To be called before any of it is touched.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
#[expect(unsafe_code, reason = "no safe function of the standard library gives advice on memory")]
pub(super) fn ask_for_large(words: &mut [u64]) {
    use std::ffi::{c_int, c_void};

    /// Of x86-64, and of aarch64 with small pages of 4 KiB. Where it is another, the system takes what it can use.
    const LARGE: usize = 2 << 20;

    /// Below this there is little to gain: the processor keeps the places of some hundred to some thousand small pages.
    const LEAST: usize = 2 * LARGE;

    const MADV_HUGEPAGE: c_int = 14;

    // Of the C library, which the standard library links anyway.
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
    // SAFETY: `before + whole <= length`, so the range lies within `words`, which nobody else uses meanwhile; the advice
    // changes nothing that is seen through it. An error says that it is not taken, and then nothing is different.
    let _ = unsafe { madvise(start.add(before).cast(), whole, MADV_HUGEPAGE) };
}

/// Elsewhere the system decides by itself.
#[cfg(not(all(target_os = "linux", not(miri), not(loom))))]
pub(super) fn ask_for_large(_words: &mut [u64]) {}
