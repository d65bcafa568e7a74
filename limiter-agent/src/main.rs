//! `weir-agent`: parses the flags, runs the agent, and returns the exit code. `weir-agent rls` runs the agent as a rate
//! limit service. `weir-agent leave` and `weir-agent probe` are separate short programs for the pod's hook and probes.

use std::{fmt::Display, process::ExitCode};

use clap::{Command, CommandFactory, Parser, error::ErrorKind};
use tokio::signal::unix::{SignalKind, signal};
use weir_agent::{Agent, Config, Flags, InvalidConfig, Leave, Probe, ServiceFlags};

fn main() -> ExitCode {
    let args = || std::env::args_os().skip(1);
    let first = args().next();
    let config = match first.as_ref().and_then(|first| first.to_str()) {
        // These are not clap subcommands, because they must ignore the agent's environment variables.
        Some("leave") => return ended("leave", Leave::parse_from(args()).run()),
        Some("probe") => return ended("probe", Probe::parse_from(args()).run()),
        Some("rls") => checked(Config::try_from(ServiceFlags::parse_from(args())), ServiceFlags::command),
        _ => checked(Config::try_from(Flags::parse()), Flags::command),
    };
    config.logs().start();

    match Agent::bind(config).map_err(anyhow::Error::from).and_then(|agent| agent.run(stop_signal())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the exit code of a short program, and prints its error.
fn ended<E: Display>(name: &str, outcome: Result<(), E>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-agent {name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the configuration, or exits with an error for wrong usage.
fn checked(config: Result<Config, InvalidConfig>, command: fn() -> Command) -> Config {
    config.unwrap_or_else(|invalid| command().error(ErrorKind::ValueValidation, invalid).exit())
}

/// Waits for SIGTERM or SIGINT. SIGHUP, which makes other programs reload their files, has no effect: the agent watches
/// its files.
async fn stop_signal() {
    let on = |kind| signal(kind).expect("a signal handler can be installed");
    // Without a handler, SIGHUP would end the process.
    let _ignored = on(SignalKind::hangup());
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate()), on(SignalKind::interrupt()));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
