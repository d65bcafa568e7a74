//! Runs tests of weir-core under miri, an interpreter that lets atomics show every value that the memory model allows.
//! It comes only with nightly toolchains: if there is none, it is installed with a message.
//!
//! Not a stage of `cargo xtask test`, which must not depend on a nightly download.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct MiriArgs {
    /// With how many thread schedules each test runs
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    seeds: u32,
}

/// Without tests that make millions of decisions, and without properties: they would take hours; loom and release
/// builds run them.
const TESTS: [&str; 3] = ["limiter", "rules", "weak_memory"];

pub(crate) fn run(workspace: &Workspace, args: &MiriArgs) -> anyhow::Result<ExitCode> {
    let Ok(found) = nightly(&["cargo", "miri", "--version"]).output() else {
        eprintln!("miri comes by rustup, which is not there: see https://rustup.rs");
        return Ok(ExitCode::from(2));
    };
    if !found.status.success() {
        println!("installing: nightly toolchain with miri and rust-src (some 300 MB), by rustup");
        let install = ["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri,rust-src"];
        let installed = Command::new("rustup").args(install).status().context("run rustup")?;
        if !installed.success() {
            eprintln!(
                "rustup could not install it: a night may lack miri, so try again tomorrow, or check the network"
            );
            return Ok(ExitCode::from(2));
        }
    }
    let mut good = true;
    // Threads depend on their schedule; the other tests have only one.
    for (tests, seeds) in [(&TESTS[..2], 1), (&TESTS[2..], args.seeds)] {
        let mut command = nightly(&["cargo", "miri", "test", "--locked", "-p", "weir-core"]);
        command.args(tests.iter().flat_map(|test| ["--test", test]));
        // The tables of keys ask the system for their secrets.
        command.env("MIRIFLAGS", format!("-Zmiri-disable-isolation -Zmiri-many-seeds=0..{seeds}"));
        println!("miri: {} ({seeds} seeds)", tests.join(", "));
        good &= command.current_dir(workspace.root()).status().context("run cargo miri")?.success();
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A command of the nightly toolchain, although this program runs under another toolchain's cargo.
fn nightly(words: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).args(words);
    for variable in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}
