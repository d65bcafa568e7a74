//! Builds an agent in release mode, and keeps it under load for half an hour. The module soak of crates/bench defines
//! the load.

use std::process::ExitCode;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{children::succeed, workspace::Workspace};

#[derive(clap::Args)]
pub(crate) struct SoakArgs {
    /// Duration in minutes; a run below 30 only tests the soak, and writes to target/weir/benchmarks
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Additional flags for the agent
    #[arg(last = true)]
    agent: Vec<String>,
}

pub(crate) async fn run(
    workspace: &Workspace,
    args: &SoakArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    workspace.build("--release -p weir-bench -p weir-agent", interrupt).await?;
    let mut soak = Command::new(workspace.target().join("release/weir-bench"));
    soak.args(["soak", "--minutes", &args.minutes.to_string()]).arg("--").args(&args.agent);
    succeed("the soak", &mut soak, interrupt).await?;
    Ok(ExitCode::SUCCESS)
}
