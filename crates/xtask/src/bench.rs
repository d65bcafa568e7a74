//! Builds the benchmarks in release mode, and runs them. crates/bench defines the measurements.

mod fleet;
pub(crate) mod peers;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{children::finish, python, workspace::Workspace};

/// The seed whose peers are packages of npm.
const NODE: &str = "003";
/// The seed whose peers are packages of PyPI.
const PYTHON: &str = "004";

#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// `core`, `tower`, `burst`, `sla` or `strategies`, these five run by default; `proxy`, `gateway`, `rls`, `seeds`
    /// or `shared`, which install their peers; `fleet`, the operator with 10,000 pods, and `fleet-limits`, limits that
    /// it counts, which build a kube-apiserver and etcd
    suites: Vec<String>,
    /// A part of `seeds`, such as `002`; without it, all parts. What is not measured stays as it was
    #[arg(long = "seed", value_name = "NUMBER")]
    seeds: Vec<String>,
    /// A part of `shared`: `agents`, `python` or `services`; or of `fleet-limits`: `simulated`, `operator` or
    /// `kind`, which makes a kind cluster; without it, all parts
    #[arg(long = "part", value_name = "NAME")]
    parts: Vec<String>,
    /// An agent of an earlier commit, built with `cargo build --profile dist -p weir-agent`: `proxy` measures it, too
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
    /// Run for some seconds only: this tests the benchmarks, and its figures are not meaningful
    #[arg(long)]
    quick: bool,
}

pub(crate) async fn run(
    workspace: &Workspace,
    mut args: BenchArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let fleets: Vec<_> = args.suites.extract_if(.., |suite| fleet::NAMES.contains(&suite.as_str())).collect();
    if let Some(unknown) = fleets.iter().find_map(|name| fleet::unknown_part(name, &args)) {
        eprintln!("bench: {unknown}");
        return Ok(ExitCode::from(2));
    }
    for name in &fleets {
        fleet::run(workspace, name, &args, interrupt).await?;
    }
    // Without a name, run all suites that need no other programs.
    if args.suites.is_empty() && !fleets.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    workspace.build("--release -p weir-bench", interrupt).await?;
    let program = workspace.target().join("release/weir-bench");
    let named = |name: &str| args.suites.iter().any(|suite| suite == name);
    let (seeds, shared, rls) = (named("seeds"), named("shared"), named("rls"));
    // Without a name, `seeds` and `shared` run all of their parts.
    let seed = |number: &str| seeds && (args.seeds.is_empty() || args.seeds.iter().any(|seed| seed == number));
    let part = |name: &str| shared && (args.parts.is_empty() || args.parts.iter().any(|part| part == name));
    let mut bench = if named("proxy") || rls || seeds || shared {
        workspace.build("--profile dist -p weir-agent", interrupt).await?;
        let mut bench = alone(&program);
        // This agent has the same build profile as the one in the image.
        bench.env("WEIR_AGENT", workspace.target().join("dist/weir-agent"));
        bench.envs(args.before.map(|before| ("WEIR_AGENT_BEFORE", before)));
        bench
    } else {
        Command::new(&program)
    };
    let needing = [
        ("proxy", peers::Of::Proxy),
        ("seeds", peers::Of::Seeds),
        ("shared", peers::Of::Shared),
        ("rls", peers::Of::Rls),
        ("gateway", peers::Of::Gateway),
    ];
    if let Some((_, of)) = needing.into_iter().find(|(name, _)| named(name)) {
        bench.env("PATH", peers::ensure(of, interrupt).await?);
    }
    if seeds {
        bench.env("WEIR_GO_LIMITER", peers::go_limiter(workspace, interrupt).await?);
    }
    if rls || part("services") {
        bench.env("WEIR_RATELIMIT", peers::rate_limit_service("bench", workspace, interrupt).await?);
    }
    if shared {
        peers::ensure_stores(interrupt).await?;
    }
    if part("services") {
        bench.env("WEIR_GUBERNATOR", peers::gubernator(workspace, interrupt).await?);
    }
    if seed(NODE) {
        bench.env("WEIR_SEEDS_NODE", peers::node_packages(workspace, interrupt).await?);
    }
    if seed(PYTHON) || part("python") {
        let requirements = workspace.root().join("crates/bench/src/seeds/python/requirements.txt");
        bench.env("WEIR_SEEDS_PYTHON", python::environment("seeds", &requirements, interrupt).await?);
    }
    bench
        .args(args.seeds.iter().flat_map(|seed| ["--seed", seed]))
        .args(args.parts.iter().flat_map(|part| ["--part", part]))
        .args(args.quick.then_some("--quick"))
        // Otherwise a suite could name one of the program's own commands.
        .arg("--")
        .args(args.suites);
    // The exit codes of weir-bench have the same meaning as those of xtask: 2 for an unknown suite.
    let code = finish("weir-bench", &mut bench, interrupt).await?;
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Runs the program in a separate network namespace, which has only a loopback device, if this can be created. In the
/// machine's namespace, firewall rules of a container runtime would inspect each packet of all contenders. This
/// takes 6 % of the agent's time, and hides differences between the contenders.
fn alone(program: &Path) -> Command {
    // Root can also lack this permission, as in most containers.
    let may = std::process::Command::new("unshare").args(["--net", "true"]).output();
    if !may.is_ok_and(|may| may.status.success()) {
        eprintln!(
            "bench: cannot create a network namespace: firewall rules of this machine can slow down all contenders"
        );
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", r#"ip link set lo up && exec "$0" "$@""#]).arg(program);
    command
}
