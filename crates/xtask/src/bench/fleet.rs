//! Builds the operator with its release profile, a control plane, and the benchmarks that measure the operator. The
//! modules fleet and fleet_limits of crates/bench define the measurements.

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::BenchArgs;
use crate::{airgap, children::succeed, test, workspace::Workspace};

/// The measurements, which are roles of `weir-bench` with the feature `fleet`.
pub(super) const NAMES: [&str; 2] = ["fleet", LIMITS];
const LIMITS: &str = "fleet-limits";
/// The parts of `fleet-limits`. The last one runs on a cluster of its own, after the others.
const PARTS: [&str; 3] = ["simulated", "operator", KIND];
const KIND: &str = "kind";

/// A part that `fleet-limits` does not have.
pub(super) fn unknown_part(name: &str, args: &BenchArgs) -> Option<String> {
    let unknown = args.parts.iter().find(|part| name == LIMITS && !PARTS.contains(&part.as_str()))?;
    Some(format!("fleet-limits has no part {unknown:?}, only {}", PARTS.join(", ")))
}

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
    // The packages are built separately, so that the operator has no feature that only another package enables.
    workspace.build("--release -p weir-operator", interrupt).await?;
    workspace.build("--release -p weir-bench --features fleet --bin weir-bench", interrupt).await?;
    let release = workspace.target().join("release");
    let (path, operator) = (release.join("weir-bench"), release.join("weir-operator").display().to_string());
    let mut shared = vec![name, "--operator", &operator];
    shared.extend(args.quick.then_some("--quick"));
    let alone: Vec<_> = PARTS.into_iter().filter(|part| *part != KIND && has(part)).collect();
    if !alone.is_empty() {
        let mut bench = Command::new(&path);
        bench.args(&shared);
        if name == LIMITS {
            bench.args(alone.iter().flat_map(|part| ["--part", part]));
        }
        if has("operator") {
            bench.env("WEIR_KUBE_BIN", airgap::tools(workspace)?);
        }
        succeed(name, &mut bench, interrupt).await?;
    }
    if name == LIMITS && has(KIND) {
        shared.extend(["--part", KIND]);
        test::on_a_cluster(workspace, name, &path, &shared, interrupt).await?;
    }
    Ok(())
}
