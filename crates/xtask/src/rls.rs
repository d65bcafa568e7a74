//! Compares the answers of `weir-agent rls` with those of envoyproxy/ratelimit. The module `rls::answers` of crates/bench
//! defines the comparison.
//!
//! This is not a stage of `cargo xtask test`, because it takes minutes and builds a program in Go.

use std::process::ExitCode;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{bench::peers, children::succeed, workspace::Workspace};

#[derive(clap::Args)]
pub(crate) struct RlsArgs {
    /// The number of random configurations
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    configurations: u32,
    /// The seed of the random numbers, to repeat a run; by default a new one
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) async fn run(
    workspace: &Workspace,
    args: &RlsArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let peer = peers::rate_limit_service("rls", workspace, interrupt).await?;
    workspace.build("--workspace --bin weir-agent --bin weir-operator --bin weir-bench", interrupt).await?;
    let mut compare = Command::new(workspace.target().join("debug/weir-bench"));
    compare.env("WEIR_RATELIMIT", peer).args(["rls-answers", "--configurations", &args.configurations.to_string()]);
    compare.args(args.seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
    succeed("the comparison", &mut compare, interrupt).await?;
    Ok(ExitCode::SUCCESS)
}
