//! `cargo xtask fmt`: runs `cargo fmt` with two more options, for the layout of imports.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::workspace::Workspace;

/// rustfmt takes these options only from nightly toolchains, or with `RUSTC_BOOTSTRAP`. In rustfmt.toml, each plain
/// `cargo fmt` would warn about them. Plain `cargo fmt` accepts the result.
const IMPORTS: &str = "group_imports=StdExternalCrate,imports_granularity=Crate";

#[derive(clap::Args)]
pub(crate) struct FmtArgs {
    /// Only compare, and fail if a file differs
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &FmtArgs) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["fmt", "--all"]).args(args.check.then_some("--check")).args(["--", "--config", IMPORTS]);
    command.env("RUSTC_BOOTSTRAP", "1").current_dir(workspace.root());
    let good = command.status().context("run cargo fmt")?.success();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
