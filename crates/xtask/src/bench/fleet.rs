//! Builds the operator with its release profile, a control plane, and the benchmark that measures the operator. The
//! module fleet of crates/bench defines the measurements.

use std::process::ExitCode;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::finish;
use crate::{
    test::{airgap, tools},
    workspace::Workspace,
};

pub(super) async fn run(workspace: &Workspace, quick: bool, interrupt: &CancellationToken) -> anyhow::Result<ExitCode> {
    let mut binaries = Command::new(airgap(workspace).join("build.sh"));
    if finish("the control plane's build", binaries.arg("binaries"), interrupt).await? != Some(0) {
        return Ok(ExitCode::FAILURE);
    }
    // The packages are built separately, so that the operator has no feature that only another package enables.
    for package in
        [&["-p", "weir-operator"][..], &["-p", "weir-bench", "--features", "fleet", "--bin", "weir-bench-fleet"]]
    {
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(workspace.root()).args(["build", "--release", "--locked"]).args(package);
        if finish("cargo build", &mut build, interrupt).await? != Some(0) {
            return Ok(ExitCode::FAILURE);
        }
    }
    let release = workspace.target().join("release");
    let mut bench = Command::new(release.join("weir-bench-fleet"));
    bench.arg("--operator").arg(release.join("weir-operator")).args(quick.then_some("--quick"));
    bench.env("WEIR_KUBE_BIN", tools(workspace)?);
    let measured = finish("weir-bench-fleet", &mut bench, interrupt).await? == Some(0);
    Ok(if measured { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
