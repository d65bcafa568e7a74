//! Builds the benchmarks in release and runs them. What is measured, and how, is in crates/bench.

mod fleet;
pub(crate) mod peers;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{children::Child, workspace::Workspace};

#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// `core`, `tower`, `burst`, `sla` or `strategies`, and these five if none is named; `proxy` or `gateway`, which install their peers;
    /// `fleet`, the operator with 10,000 pods, which builds a kube-apiserver and etcd
    suites: Vec<String>,
    /// A run of some seconds: it shows that all works, and its figures mean nothing
    #[arg(long)]
    quick: bool,
}

pub(crate) async fn run(
    workspace: &Workspace,
    mut args: BenchArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let named = args.suites.len();
    args.suites.retain(|suite| suite != "fleet");
    if args.suites.len() < named {
        let code = fleet::run(workspace, args.quick, interrupt).await?;
        // Without a name it would be all that need nothing else.
        if args.suites.is_empty() || code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(workspace.root()).args(["build", "--release", "--locked", "-p", "weir-bench"]);
    if finish("cargo build", &mut build, interrupt).await? != Some(0) {
        return Ok(ExitCode::FAILURE);
    }
    let mut bench = Command::new(workspace.target().join("release/weir-bench"));
    let proxy = args.suites.iter().any(|suite| suite == "proxy");
    if proxy {
        // As its image has it.
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(workspace.root()).args(["build", "--profile", "dist", "--locked", "-p", "weir-agent"]);
        if finish("cargo build", &mut build, interrupt).await? != Some(0) {
            return Ok(ExitCode::FAILURE);
        }
        bench.env("WEIR_AGENT", workspace.target().join("dist/weir-agent"));
    }
    if proxy || args.suites.iter().any(|suite| suite == "gateway") {
        let Some(path) = peers::ensure(proxy, interrupt).await? else { return Ok(ExitCode::from(2)) };
        bench.env("PATH", path);
    }
    bench.args(args.suites).args(args.quick.then_some("--quick"));
    // Its codes are ours: 2 for a suite that there is not.
    let code = finish("weir-bench", &mut bench, interrupt).await?;
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Its exit code, if it came to an end by itself; on an interrupt it is stopped.
pub(crate) async fn finish(
    name: &str,
    command: &mut Command,
    interrupt: &CancellationToken,
) -> anyhow::Result<Option<i32>> {
    let mut child = Child::spawn(name, command)?;
    tokio::select! {
        status = child.wait() => Ok(status.with_context(|| format!("run {name}"))?.code()),
        () = interrupt.cancelled() => {
            child.stop(Duration::from_secs(2)).await;
            Ok(None)
        }
    }
}
