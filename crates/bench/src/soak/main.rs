//! The program that soaks an agent: see the module of this name in the library of this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::run_soak()
}
