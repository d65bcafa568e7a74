//! A gateway of `cargo xtask bench gateway`: see the module `gateway` of this package's library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::serve_gateway()
}
