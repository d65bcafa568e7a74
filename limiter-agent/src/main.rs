//! `weir-agent`: parses the flags, runs the agent, and returns the exit code. `weir-agent rls` runs the agent as a rate
//! limit service. `weir-agent leave` is a separate short program for the pod's `preStop` hook.

use std::process::ExitCode;

use clap::{Command, CommandFactory, Parser, error::ErrorKind};
use tokio::signal::unix::{SignalKind, signal};
use weir_agent::{Agent, Config, Flags, InvalidConfig, Leave, ServiceFlags};

fn main() -> ExitCode {
    // `leave` is not a clap subcommand, because it must ignore the agent's environment variables.
    if std::env::args_os().nth(1).is_some_and(|first| first == "leave") {
        return match Leave::parse_from(std::env::args_os().skip(1)).run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("weir-agent leave: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let config = if std::env::args_os().nth(1).is_some_and(|first| first == "rls") {
        checked(Config::try_from(ServiceFlags::parse_from(std::env::args_os().skip(1))), ServiceFlags::command)
    } else {
        checked(Config::try_from(Flags::parse()), Flags::command)
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
