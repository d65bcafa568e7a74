//! Several of the agents that share a limit, of `cargo xtask bench shared`: see the module `shared::agents` of this
//! package's library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::run_sharers()
}
