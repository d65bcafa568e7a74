//! `cargo xtask deny`: what cargo-deny finds, by deny.toml.
//!
//! Licences, refused packages and sources are asked about in every test run by `cargo xtask tidy`, from what cargo knows. This
//! asks the tool that knows more: the texts of licences, wildcards, what is there twice and, where its database can be
//! reached, advisories. Not a stage of `cargo xtask test`: on a bare machine it takes minutes of compiling before it says a word.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::workspace::Workspace;

/// How the tool is had; it comes by no package of Debian's.
const INSTALL: &str = "cargo install cargo-deny --locked";
/// What can be asked without a network.
const CHECKS: [&str; 3] = ["licenses", "bans", "sources"];

#[derive(clap::Args)]
pub(crate) struct DenyArgs {
    /// Ask for advisories, too: their database is a repository, which is fetched
    #[arg(long)]
    advisories: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &DenyArgs) -> anyhow::Result<ExitCode> {
    let mut cargo = Command::new(env!("CARGO"));
    let found = cargo.args(["deny", "--version"]).output().context("run cargo")?;
    if !found.status.success() {
        eprintln!("cargo-deny is not there: {INSTALL} (some minutes), and see that its folder is in PATH");
        return Ok(ExitCode::from(2));
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["deny", "--locked", "check"]).args(CHECKS).args(args.advisories.then_some("advisories"));
    let good = command.current_dir(workspace.root()).status().context("run cargo deny")?.success();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
