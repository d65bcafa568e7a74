//! Builds the operator with its release profile, a control plane, and the benchmarks that measure the operator. The
//! modules fleet and fleet_limits of crates/bench define the measurements.

use std::process::ExitCode;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::BenchArgs;
use crate::{airgap, children::finish, workspace::Workspace};

/// The measurements, whose programs are `weir-bench-fleet` and `weir-bench-fleet-limits`.
pub(super) const NAMES: [&str; 2] = ["fleet", LIMITS];
const LIMITS: &str = "fleet-limits";

pub(super) async fn run(
    workspace: &Workspace,
    name: &str,
    args: &BenchArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    // `fleet` has no parts, and a part of `fleet-limits` needs only some of the programs.
    let has = |part: &str| name != LIMITS || args.parts.is_empty() || args.parts.iter().any(|named| named == part);
    let mut binaries = Command::new(airgap::folder(workspace).join("build.sh"));
    if has("operator") && finish("the control plane's build", binaries.arg("binaries"), interrupt).await? != Some(0) {
        return Ok(ExitCode::FAILURE);
    }
    let program = format!("weir-bench-{name}");
    // The packages are built separately, so that the operator has no feature that only another package enables.
    let mut packages =
        vec![vec!["-p", "weir-operator"], vec!["-p", "weir-bench", "--features", "fleet", "--bin", &program]];
    if name == LIMITS && has("agents") {
        packages.push(vec!["-p", "weir-agent"]);
    }
    for package in packages {
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(workspace.root()).args(["build", "--release", "--locked"]).args(package);
        if finish("cargo build", &mut build, interrupt).await? != Some(0) {
            return Ok(ExitCode::FAILURE);
        }
    }
    let release = workspace.target().join("release");
    let mut bench = Command::new(release.join(&program));
    bench.arg("--operator").arg(release.join("weir-operator")).args(args.quick.then_some("--quick"));
    if name == LIMITS {
        bench.args(args.parts.iter().flat_map(|part| ["--part", part]));
    }
    if has("operator") {
        bench.env("WEIR_KUBE_BIN", airgap::tools(workspace)?);
    }
    let measured = finish(&program, &mut bench, interrupt).await? == Some(0);
    Ok(if measured { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
