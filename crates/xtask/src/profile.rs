//! The agent's profile, `limiter-agent/agent.profdata`: how often each of its branches is taken under load. The
//! compiler uses it for the agent's code layout in builds for the image (profile dist): a refused request took a
//! seventh fewer instructions when this was first tried. Without a profile, or with an outdated one, the agent does the
//! same and is slower.
//!
//! Renew it by hand after changes to code that every request runs. Functions are matched by name and shape, so changed
//! functions count as never measured, and the compiler warns about them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::bench::{alone, finish, peers};
use crate::debian::{self, Need};
use crate::workspace::Workspace;

/// Path in the checkout.
pub(crate) const FILE: &str = "limiter-agent/agent.profdata";

/// Reads the counts of programs of this toolchain and writes them in the same version: its own LLVM is later, and
/// supports it.
const PROFDATA: &str = "llvm-profdata-19";
const NEEDS: [Need; 1] = [(PROFDATA, "llvm-19", "puts together what the agent counted")];

/// One minute of clients of every kind: code that the proxy's load does not run must not count as never used.
const SOAK_MINUTES: &str = "1";

#[derive(clap::Args)]
pub(crate) struct ProfileArgs {}

/// Builds the agent as for the image, with the profile of the checkout.
pub(crate) fn build(workspace: &Workspace) -> Command {
    cargo(workspace, "profile-use", &file(workspace))
}

pub(crate) async fn run(
    workspace: &Workspace,
    _: ProfileArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let Some(path) = peers::ensure(peers::Of::Agent, interrupt).await? else { return Ok(ExitCode::from(2)) };
    if !debian::ensure("profile", NEEDS, interrupt).await? {
        return Ok(ExitCode::from(2));
    }
    let counts = workspace.scratch().join("profile");
    eprintln!("profile: builds an agent that counts which branches are taken");
    let mut counting = cargo(workspace, "profile-generate", &counts);
    // In its own target folder, so that the two builds do not overwrite each other.
    let target = workspace.target().join("counting");
    counting.env("CARGO_TARGET_DIR", &target);
    let mut load = Command::new(env!("CARGO"));
    load.current_dir(workspace.root()).args(["build", "--release", "--locked", "-p", "weir-bench"]);
    for build in [&mut counting, &mut load] {
        if finish("cargo build", build, interrupt).await? != Some(0) {
            return Ok(ExitCode::FAILURE);
        }
    }
    // Build scripts write counts, too.
    fs::remove_dir_all(&counts).with_context(|| format!("empty {}", counts.display()))?;
    let programs = workspace.target().join("release");
    let mut proxy = alone(&programs.join("weir-bench"));
    proxy.arg("--train");
    let mut soak = alone(&programs.join("weir-bench-soak"));
    soak.args(["--minutes", SOAK_MINUTES]);
    for (name, load) in [("weir-bench", &mut proxy), ("weir-bench-soak", &mut soak)] {
        load.env("PATH", &path).env("WEIR_AGENT", target.join("dist/weir-agent"));
        if finish(name, load, interrupt).await? != Some(0) {
            return Ok(ExitCode::FAILURE);
        }
    }
    let mut merge = Command::new(PROFDATA);
    merge.args(["merge", "--sparse", "--output"]).arg(file(workspace)).args(counted(&counts)?);
    if finish(PROFDATA, &mut merge, interrupt).await? != Some(0) {
        return Ok(ExitCode::FAILURE);
    }
    println!("written: {}", file(workspace).display());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn file(workspace: &Workspace) -> PathBuf {
    workspace.root().join(FILE)
}

/// The agent in profile dist, with one more compiler flag than the caller's.
fn cargo(workspace: &Workspace, flag: &str, path: &Path) -> Command {
    let mut flags = std::env::var_os("RUSTFLAGS").unwrap_or_default();
    flags.push(OsString::from(format!(" -C{flag}=")));
    flags.push(path);
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(workspace.root()).env("RUSTFLAGS", flags);
    build.args(["build", "--profile", "dist", "--locked", "-p", "weir-agent"]);
    build
}

fn counted(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}: did the agent count?", folder.display()))?;
    let files = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!files.is_empty(), "the agent counted nothing in {}", folder.display());
    Ok(files)
}
