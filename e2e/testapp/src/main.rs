//! `weir-testapp`: see [`weir_testapp`]. Parses the arguments, runs, and turns the result into an exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weir_testapp::{LoadArgs, ProbeArgs, ServeArgs, load, probe, serve};

/// A small app to protect, and a load generator.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve: / (hostname), /healthz, /echo, /headers, /bytes/N, /slow?ms=N, /_count; any other path answers 200
    Serve(ServeArgs),
    /// Send at a steady rate, whatever the answers are. Exits with 0 if the schedule was kept
    Load(LoadArgs),
    /// Send an exact number of requests as fast as the answers come
    Probe(ProbeArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(args).await.map(|()| true),
        Command::Load(args) => load::run(args).await,
        Command::Probe(args) => probe::run(args).await.map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weir-testapp: {error:#}");
            ExitCode::FAILURE
        }
    }
}
