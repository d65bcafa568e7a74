//! The program `weir-bench-soak`: see the module `soak` of this package's library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::run_soak()
}
