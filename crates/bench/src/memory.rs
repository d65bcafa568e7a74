//! Counts the bytes that each keyed store takes for each key. A program of its own, so that the counting allocator slows
//! nothing that is timed.

use std::alloc::System;
use std::process::ExitCode;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    weir_bench::count_bytes(|| {
        let stats = ALLOCATOR.stats();
        // What a reallocation adds or takes is in both of the first two, too.
        stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
    })
}
