//! `weir-agent`: parse, run, exit code.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, error::ErrorKind};
use tokio::signal::unix::{SignalKind, signal};
use weir_agent::{Agent, Config, Flags};

fn main() -> ExitCode {
    let config = Config::try_from(Flags::parse())
        .unwrap_or_else(|invalid| Flags::command().error(ErrorKind::ValueValidation, invalid).exit());
    config.logs().start();

    match Agent::bind(config).map_err(anyhow::Error::from).and_then(|agent| agent.run(told_to_stop())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// SIGTERM or SIGINT.
async fn told_to_stop() {
    let on = |kind| signal(kind).expect("signals can be listened to");
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate()), on(SignalKind::interrupt()));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
