//! `weir-operator`: see the crate's documentation and `weir-operator --help`.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    weir_operator::cli::Cli::parse().run()
}
