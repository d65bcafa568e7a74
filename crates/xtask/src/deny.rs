//! `cargo xtask deny`: checks the dependencies with cargo-deny and deny.toml.
//!
//! The checks of licences, refused packages and sources need no network, so their result changes only with the lock
//! file. Advisories are in a repository that changes independently. So they are checked only with a flag, and never by
//! `cargo xtask test`.

use std::{
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, ensure};

use crate::{cache, workspace::Workspace};

/// The version of cargo-deny. It is fixed, because another version can give another result.
const VERSION: &str = "0.20.2";
/// The checks that need no network.
const CHECKS: [&str; 3] = ["licenses", "bans", "sources"];

#[derive(clap::Args)]
pub(crate) struct DenyArgs {
    /// Also check advisories, whose database is fetched from its repository
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

/// Finds or compiles cargo-deny below the user's cache. Returns its path.
fn program() -> anyhow::Result<PathBuf> {
    let folder = cache::folder()?.join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin/cargo-deny");
    if !program.is_file() {
        eprintln!("deny: compiling cargo-deny {VERSION} into {}, which takes a minute or two", folder.display());
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["install", "cargo-deny", "--version", VERSION, "--locked", "--debug", "--root"]).arg(&folder);
        // cargo-deny runs for seconds only. So a build without optimisation and debug information takes the least time
        // in total.
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
        ensure!(cargo.status().context("run cargo install")?.success(), "cargo-deny could not be installed");
    }
    Ok(program)
}
