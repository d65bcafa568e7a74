//! The program of `cargo xtask bench fleet-limits`: see the module `fleet_limits` of this package's library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::run_fleet_limits()
}
