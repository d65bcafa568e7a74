//! Counts the bytes per key of each keyed store. This is a separate program, so that the counting allocator does not
//! slow the timed measurements.

use std::{alloc::System, process::ExitCode};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    weir_bench::count_bytes(|| {
        let stats = ALLOCATOR.stats();
        // Both counters include reallocations.
        stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
    })
}
