//! Counts the bytes per key of each keyed store. It is a program of its own, so that the counting allocator slows
//! nothing that is timed.

use std::{alloc::System, process::ExitCode};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    weir_bench::count_bytes(|| {
        let stats = ALLOCATOR.stats();
        // Reallocations are included in both of the first two.
        stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
    })
}
