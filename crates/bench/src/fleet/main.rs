//! The program of `cargo xtask bench fleet`: see the module `fleet` of this package's library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::run_fleet()
}
