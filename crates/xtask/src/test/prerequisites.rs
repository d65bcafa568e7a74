//! What the stages need on the machine besides a Rust toolchain and a C compiler, which this program itself needs.
//!
//! On Debian as root it installs missing programs, and prints what and why; elsewhere it lists them. It installs
//! nothing that no stage of this run needs.

use std::{path::Path, process::Command};

use anyhow::{Context as _, ensure};

use super::stages::{Stage, airgap};
use crate::workspace::Workspace;

/// A program and its purpose.
type Need = (&'static str, &'static str);

const RUSTFMT: Need = ("cargo-fmt", "checks the formatting; comes with `rustup component add rustfmt`");
const CLIPPY: Need = ("cargo-clippy", "lints; comes with `rustup component add clippy`");
const STORES: &[Need] = &[("redis-server", "tests of crates/store start it"), ("memcached", "same")];
const TOOLS: &[Need] = &[
    ("bash", "runs the scripts of e2e/airgap"),
    ("go", "compiles kube-apiserver, etcd, kubectl, helm and kind from Go modules"),
    ("flock", "one build of these at a time"),
    ("sha256sum", "names the cache by what decides its content"),
];
const DASHBOARDS: &[Need] = &[
    ("prometheus", "scrapes the demo and answers the dashboards' queries"),
    ("promtool", "tests the alerts; comes with Prometheus"),
    ("node", "bundles the page of Grafana's panels; 18 or later"),
    ("npm", "installs Grafana's panels"),
    ("chromium", "shows the dashboards"),
    ("openssl", "makes a certificate for a control port"),
];
const E2E: &[Need] = &[
    ("docker", "the nodes of the kind cluster are containers"),
    ("redis-server", "an image for the scenario of shared limits"),
    ("dockerd", "same"),
    ("iptables", "keeps the cluster's traffic on this machine"),
    ("ip", "same"),
    ("sysctl", "raises the inotify limits that several nodes need"),
    ("debootstrap", "makes the root file system of the node image"),
    ("busybox", "the shell in small images"),
    ("gcc", "compiles pause and runc for the node image"),
    ("pkg-config", "same"),
    ("jq", "edits the node image's OCI spec"),
];

/// Finds or installs what `stages` need. Returns what is still missing, if anything.
pub(super) fn ensure(workspace: &Workspace, stages: &[Stage]) -> anyhow::Result<Option<String>> {
    let debian_root = is_debian(&std::fs::read_to_string("/etc/os-release").unwrap_or_default()) && is_root();
    let mut needs = Vec::new();
    for stage in stages {
        match stage {
            Stage::Fmt => needs.push(RUSTFMT),
            Stage::Clippy => needs.push(CLIPPY),
            // Installed below: the scripts know the names of the packages.
            Stage::Unit if !debian_root => needs.extend(STORES),
            Stage::Tools if !debian_root => needs.extend(TOOLS),
            Stage::E2e if !debian_root => needs.extend(E2E),
            // The stage installs them itself.
            Stage::Dashboards if !debian_root => needs.extend(DASHBOARDS),
            _ => {}
        }
    }
    if debian_root && stages.contains(&Stage::Unit) {
        install(workspace, Some("stores"))?;
    }
    if debian_root && stages.contains(&Stage::Tools) {
        install(workspace, (!stages.contains(&Stage::E2e)).then_some("binaries"))?;
    }
    let mut missing: Vec<_> = needs.into_iter().filter(|(program, _)| !is_on_path(program)).collect();
    if stages.contains(&Stage::E2e) && !is_root() {
        missing.push(("root", "starts dockerd and makes the node image; or use --no-e2e"));
    }
    Ok((!missing.is_empty()).then(|| list(&missing)))
}

fn install(workspace: &Workspace, part: Option<&str>) -> anyhow::Result<()> {
    let script = airgap(workspace).join("install-prereqs.sh");
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
        "This machine lacks what `cargo xtask test` needs (on Debian as root it would be installed):{}",
        lines.collect::<String>()
    )
}

fn is_debian(os_release: &str) -> bool {
    let fields = os_release.lines().filter_map(|line| line.split_once('='));
    let mut words =
        fields.filter(|(name, _)| matches!(*name, "ID" | "ID_LIKE")).map(|(_, value)| value.trim_matches('"'));
    words.any(|value| value.split(' ').any(|word| word == "debian"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<_> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(Into::into)); // not in every user's PATH
    folders.extend(Path::new(env!("CARGO")).parent().map(Into::into));
    folders.iter().any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_and_what_is_made_of_it_are_known() {
        assert!(is_debian("PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n"));
        assert!(is_debian("ID=ubuntu\nID_LIKE=\"debian\"\n"));
        assert!(!is_debian("ID=fedora\nHOME_URL=\"debian\"\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn programs_are_looked_for_where_they_are() {
        assert!(is_on_path("sh"));
        assert!(!is_on_path("no-such-program-anywhere"));
    }

    #[test]
    fn the_list_says_what_for() {
        assert!(list(&[("jq", "edits")]).ends_with("\n  jq             edits"));
    }
}
