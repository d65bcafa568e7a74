//! Reads the properties of the machine and the versions of programs, without which figures are not meaningful.

use std::{fmt, fs, path::Path, process::Command};

use anyhow::Context as _;
use cargo_metadata::MetadataCommand;
use serde::{Deserialize, Serialize};

use crate::command::output;

/// The peers whose versions are reported, if this package depends on them.
const PEERS: [&str; 9] =
    ["shot-limit", "tower-shot", "governor", "leaky-bucket", "tower", "tokio", "dashmap", "scc", "papaya"];

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    rustc: String,
    /// The build profile. Only figures of the profile `release` are meaningful.
    profile: String,
}

impl Machine {
    pub(super) fn read() -> anyhow::Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let rustc = Command::new("rustc").arg("--version").output().context("run rustc --version")?;
        Ok(Self {
            cpu: model.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            rustc: String::from_utf8_lossy(&rustc.stdout).trim().to_owned(),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, rustc, profile } = self;
        write!(f, "{cpu}, {cores} cores, kernel {kernel}, {rustc}, {profile} build")
    }
}

/// Reads the versions of the peers that cargo resolved for this package.
pub(super) fn versions() -> anyhow::Result<Vec<(String, String)>> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let metadata = MetadataCommand::new()
        .manifest_path(manifest)
        .other_options(["--locked".to_owned()])
        .exec()
        .context("cargo metadata")?;
    let resolve = metadata.resolve.as_ref().context("cargo metadata contains no dependency graph")?;
    let ours = metadata.workspace_packages().into_iter().find(|package| package.name == env!("CARGO_PKG_NAME"));
    let ours = ours.context("this package is not in its workspace")?;
    let node = resolve.nodes.iter().find(|node| node.id == ours.id).context("this package is not in the graph")?;
    let linked = node.dependencies.iter().map(|id| &metadata[id]);
    let mut versions: Vec<_> = linked
        .filter(|package| PEERS.contains(&package.name.as_str()))
        .map(|package| (package.name.to_string(), package.version.to_string()))
        .collect();
    versions.sort();
    Ok(versions)
}

/// The version of a module that a `go.mod` requires.
pub(crate) fn go_version(modules: &str, module: &str) -> anyhow::Result<String> {
    let mut lines = modules.lines().map(|line| line.trim().trim_start_matches("require "));
    let version = lines.find_map(|line| line.strip_prefix(module)?.strip_prefix(' ')?.split(' ').next());
    Ok(version.with_context(|| format!("go.mod does not require {module}"))?.to_owned())
}

/// The version that a program reports: `v20.1.0`, or `Redis server v=7.0.1 sha=…`.
pub(crate) fn program_version(program: &str) -> anyhow::Result<String> {
    let text = output(Command::new(program).arg("--version"))?;
    let version = text.split_whitespace().find_map(|word| word.strip_prefix('v'));
    Ok(version.with_context(|| format!("{program} reports its version"))?.trim_start_matches('=').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_a_version() {
        let versions = versions().expect("this is a checkout");
        let names: Vec<_> = versions.iter().map(|(name, _)| name.as_str()).collect();
        let mut peers = PEERS;
        peers.sort_unstable();
        assert_eq!(names, peers);
    }
}
