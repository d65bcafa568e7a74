//! Builds the operator with its release profile, a control plane, and the benchmarks that measure the operator. The
//! modules fleet and fleet_limits of crates/bench define the measurements.

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::BenchArgs;
use crate::{airgap, children::succeed, workspace::Workspace};

/// The measurements, whose programs are `weir-bench-fleet` and `weir-bench-fleet-limits`.
pub(super) const NAMES: [&str; 2] = ["fleet", LIMITS];
const LIMITS: &str = "fleet-limits";

pub(super) async fn run(
    workspace: &Workspace,
    name: &str,
    args: &BenchArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<()> {
    // `fleet` has no parts, and a part of `fleet-limits` needs only some of the programs.
    let has = |part: &str| name != LIMITS || args.parts.is_empty() || args.parts.iter().any(|named| named == part);
    if has("operator") {
        let mut binaries = Command::new(airgap::folder(workspace).join("build.sh"));
        succeed("the control plane's build", binaries.arg("binaries"), interrupt).await?;
    }
    let program = format!("weir-bench-{name}");
    // The packages are built separately, so that the operator has no feature that only another package enables.
    workspace.build("--release -p weir-operator", interrupt).await?;
    workspace.build(&format!("--release -p weir-bench --features fleet --bin {program}"), interrupt).await?;
    if name == LIMITS && has("agents") {
        workspace.build("--release -p weir-agent", interrupt).await?;
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
    succeed(&program, &mut bench, interrupt).await
}
