//! `cargo xtask deny`: what may enter the dependency tree, checked by cargo-deny with deny.toml.
//!
//! Licences, refused packages and sources need no network, so the result changes only with the lock file. Advisories
//! are in a repository that changes on its own: they are checked only with a flag, never by `cargo xtask test`.

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, ensure};

use crate::{bench::peers::cache, workspace::Workspace};

/// The version to install; another one may judge differently.
const VERSION: &str = "0.20.2";
/// The checks that need no network.
const CHECKS: [&str; 3] = ["licenses", "bans", "sources"];

#[derive(clap::Args)]
pub(crate) struct DenyArgs {
    /// Check advisories, too: their database is a repository, which is fetched
    #[arg(long)]
    advisories: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &DenyArgs) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(program()?);
    command.args(["--locked", "--log-level", "error", "check"]).args(CHECKS);
    command.args(args.advisories.then_some("advisories")).current_dir(workspace.root());
    let good = command.status().context("run cargo-deny")?.success();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// cargo-deny below the user's cache, compiled if it is not there yet.
fn program() -> anyhow::Result<PathBuf> {
    let folder = cache()?.join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin/cargo-deny");
    if !program.is_file() {
        eprintln!("deny: compiles cargo-deny {VERSION} into {}: a minute or two", folder.display());
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["install", "cargo-deny", "--version", VERSION, "--locked", "--debug", "--root"]).arg(&folder);
        // It runs for seconds, so it is compiled without optimisation and debug information, which is fastest in total.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
        ensure!(cargo.status().context("run cargo install")?.success(), "cargo-deny could not be installed");
    }
    Ok(program)
}
