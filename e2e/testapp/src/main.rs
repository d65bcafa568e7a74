//! The program `weir-testapp`: parses the arguments, runs [`weir_testapp`], and converts the result to an exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weir_testapp::{LoadArgs, ServeArgs, load, serve};

/// A small app to protect, and a load generator.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve: / (hostname), /healthz, /echo, /bytes/N, /slow?ms=N, /_count; any other path answers 200
    Serve(ServeArgs),
    /// Send at a constant rate, independent of the answers. Exits with 0 if all requests were sent on schedule
    Load(LoadArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(args).await.map(|()| true),
        Command::Load(args) => load::run(args).await,
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
