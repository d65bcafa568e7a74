//! The program `weir-bench`: see the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::run()
}
