//! One gateway around a stack of layers, of `cargo xtask bench seeds`: see the module `seeds::crowd` of this package's
//! library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_bench::serve_stack()
}
