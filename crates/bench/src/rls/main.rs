//! The program `weir-bench-rls`: see the module `rls::answers` of this package's library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::compare_rls()
}
