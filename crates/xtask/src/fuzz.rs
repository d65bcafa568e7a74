//! Runs scripts of random bytes against the limiters for a while; see `crates/core/fuzz/main.rs`.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct FuzzArgs {
    /// What is fuzzed
    #[arg(value_enum)]
    target: Target,
    /// How long
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Run this script only, as hex
    #[arg(long, value_name = "HEX")]
    replay: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Target {
    /// Quotas, retunes and decisions of `weir-core`
    Core,
}

pub(crate) fn run(workspace: &Workspace, args: &FuzzArgs) -> anyhow::Result<ExitCode> {
    let Target::Core = args.target;
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--release", "-p", "weir-core", "--example", "fuzz", "--"]);
    command.current_dir(workspace.root()).args(["--seconds", &args.seconds.to_string()]);
    if let Some(hex) = &args.replay {
        command.args(["--replay", hex]);
    }
    let status = command.status().context("run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
