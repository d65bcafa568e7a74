//! The scripts of e2e/airgap, which build a control plane and its tools.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};

use crate::workspace::Workspace;

/// The folder of the scripts that build programs and the node image, and start dockerd and clusters.
pub(crate) fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("e2e/airgap")
}

/// The folder of kube-apiserver, etcd, kubectl, helm and kind.
pub(crate) fn tools(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let script = folder(workspace).join("build.sh");
    let output = Command::new(&script).arg("path").output().with_context(|| format!("run {}", script.display()))?;
    ensure!(output.status.success(), "{} path: {}", script.display(), String::from_utf8_lossy(&output.stderr));
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("bin"))
}
