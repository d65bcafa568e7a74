//! Runs tests of weir-core under miri. In this interpreter, a load of an atomic can return every value that the memory
//! model allows, and threads can switch anywhere. Only nightly toolchains contain miri. If it is missing, this command
//! installs it.
//!
//! This is not a stage of `cargo xtask test`, which must not depend on a nightly toolchain.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::{debian::Missing, workspace::Workspace};

#[derive(clap::Args)]
pub(crate) struct MiriArgs {
    /// Number of thread schedules of each test
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
}

/// The tests to run. Property tests and tests with millions of decisions would take hours under miri. They run with
/// loom, or in release builds.
const TESTS: [&str; 3] = ["limiter", "rules", "weak_memory"];

pub(crate) fn run(workspace: &Workspace, args: &MiriArgs) -> anyhow::Result<ExitCode> {
    let Ok(found) = nightly(&["cargo", "miri", "--version"]).output() else {
        return Err(Missing("miri is installed by rustup, which is missing: see https://rustup.rs".to_owned()).into());
    };
    if !found.status.success() {
        println!("installing the nightly toolchain with miri and rust-src (about 300 MB), with rustup");
        let install = ["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri,rust-src"];
        let installed = Command::new("rustup").args(install).status().context("run rustup")?;
        if !installed.success() {
            let cause = "check the network, or try again tomorrow, because some nightly toolchains lack miri";
            return Err(Missing(format!("rustup could not install miri: {cause}")).into());
        }
    }
    let mut good = true;
    // Only tests with threads depend on the schedule, so the others run once.
    for (tests, seeds) in [(&TESTS[..2], 1), (&TESTS[2..], args.seeds)] {
        let mut command = nightly(&["cargo", "miri", "test", "--locked", "-p", "weir-core"]);
        command.args(tests.iter().flat_map(|test| ["--test", test]));
        // Isolation is disabled, because the tables of keys read random numbers from the system.
        command.env("MIRIFLAGS", format!("-Zmiri-disable-isolation -Zmiri-many-seeds=0..{seeds}"));
        println!("miri: {} ({seeds} seeds)", tests.join(", "));
        good &= command.current_dir(workspace.root()).status().context("run cargo miri")?.success();
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Creates a command that runs with the nightly toolchain. This program itself runs under another toolchain's cargo.
fn nightly(words: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).args(words);
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}
