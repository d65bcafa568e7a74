//! The program `weir-e2e`: parses the arguments, runs [`weir_e2e`], and converts the result to an exit code.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weir_e2e::{RunArgs, run};

/// Black-box scenarios of Weir on a Kubernetes cluster.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(RunArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command::Run(args) = Cli::parse().command;
    match run(args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weir-e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}
