//! Random input for a while, until something fails: `weir-core` by a program of its own (`crates/core/fuzz/main.rs`), the
//! agent and `weir-enforce` by the same tests that `cargo test` runs for a moment (`limiter-agent/src/fuzz.rs` and
//! `limiter-agent/tests/agent/differential`).

use std::process::{Command, ExitCode};

use anyhow::Context as _;

use crate::workspace::Workspace;

#[derive(clap::Args)]
pub(crate) struct FuzzArgs {
    /// What to fuzz
    #[arg(value_enum)]
    target: Target,
    /// For how long
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Run only this input, as it was printed by a failure: hex, or a seed of `http`
    #[arg(long, value_name = "HEX|SEED")]
    replay: Option<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Target {
    /// Quotas, retunes and decisions of `weir-core`
    Core,
    /// Connections of HTTP/1.1 through both paths of the agent, which must behave the same
    Http,
    /// Snapshots: refused with a path, or enforced without a panic
    Snapshot,
    /// Normal forms, globs and the index of rules
    Paths,
    /// Frames of WebSocket
    Frames,
}

impl Target {
    /// The test that it is: its package, where, and its name.
    fn test(self) -> Option<[&'static str; 3]> {
        match self {
            Self::Core => None,
            Self::Http => {
                Some(["weir-agent", "--test=agent", "differential::any_connection_behaves_alike_on_both_paths"])
            }
            Self::Snapshot => Some(["weir-agent", "--lib", "apply::fuzz::any_snapshot_is_refused_or_enforced"]),
            Self::Paths => {
                Some(["weir-enforce", "--lib", "matching::fuzz::any_path_and_glob_agree_with_the_definition"])
            }
            Self::Frames => {
                Some(["weir-agent", "--lib", "proxy::websocket::fuzz::any_frames_are_read_as_others_read_them"])
            }
        }
    }
}

pub(crate) fn run(workspace: &Workspace, args: &FuzzArgs) -> anyhow::Result<ExitCode> {
    let seconds = args.seconds.to_string();
    let mut command = Command::new("cargo");
    command.current_dir(workspace.root());
    if let Some([package, place, test]) = args.target.test() {
        // Not in release: an overflow is to be seen, and the tests are built already.
        command.args(["test", "--quiet", "-p", package, place, test, "--", "--exact", "--nocapture"]);
        command.env("WEIR_FUZZ_SECONDS", &seconds);
        if let Some(replay) = &args.replay {
            command.env("WEIR_FUZZ_REPLAY", replay);
        }
    } else {
        command.args(["run", "--quiet", "--release", "-p", "weir-core", "--example", "fuzz", "--"]);
        command.args(["--seconds", &seconds]);
        if let Some(hex) = &args.replay {
            command.args(["--replay", hex]);
        }
    }
    let status = command.status().context("run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
