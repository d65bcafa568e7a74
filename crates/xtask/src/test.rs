//! `cargo xtask test`: runs everything that CI checks, stage by stage, with the fast stages first.
//!
//! If a stage fails, the other stages still run. The last line counts the tests that the test runners reported. A test
//! that did not run must never be counted as passed.

mod cluster;
mod helm;
mod prerequisites;
mod results;
mod runner;
mod stages;

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::ensure;
use tokio_util::sync::CancellationToken;

use self::{
    results::Tally,
    runner::{Runner, Step},
    stages::Stage,
};
use crate::{clock, workspace::Workspace};

#[derive(clap::Args)]
pub(crate) struct TestArgs {
    /// Run everything except the scenarios on a kind cluster
    #[arg(long)]
    no_e2e: bool,
    /// Run only this stage and the stages that it needs; the flag can be repeated
    #[arg(long, value_name = "STAGE", value_enum)]
    only: Vec<Stage>,
    /// Show the output of the stages immediately; by default, it goes to logs, and is shown only for failures
    #[arg(long)]
    verbose: bool,
}

enum Outcome {
    Ran {
        tally: Tally,
        took: Duration,
    },
    /// The stage could not run, because this other stage failed.
    Blocked(Stage),
}

pub(crate) async fn run(
    workspace: &Workspace,
    args: TestArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let stages = Stage::plan(&args.only, !args.no_e2e);
    let runner = Runner::new(workspace, args.verbose, interrupt)?;
    prerequisites::ensure(workspace, &stages)?;
    println!("{} stages; logs are in {}\n", stages.len(), runner.logs().display());

    let started = clock::now();
    let mut outcomes: Vec<(Stage, Outcome)> = Vec::new();
    for stage in stages {
        if interrupt.is_cancelled() {
            break;
        }
        let failed = |needed: &Stage| outcomes.iter().any(|(stage, outcome)| stage == needed && !outcome.is_success());
        let outcome = match stage.needs().iter().copied().find(|needed| failed(needed)) {
            Some(needed) => Outcome::Blocked(needed),
            None => {
                let begun = clock::now();
                let tally = stage.run(&runner).await;
                Outcome::Ran { tally, took: clock::since(begun) }
            }
        };
        println!("{}", line(stage, &outcome));
        outcomes.push((stage, outcome));
    }

    if interrupt.is_cancelled() {
        println!("\ninterrupted: all started processes are stopped");
    }
    println!("\n{:<15} {:<8} {:>7} {:>7} {:>9}", "stage", "result", "passed", "failed", "time");
    let mut sum = Tally::default();
    for (stage, outcome) in &outcomes {
        let (result, tally, time) = match outcome {
            Outcome::Ran { tally, took } if tally.failed == 0 => ("ok", *tally, seconds(*took)),
            Outcome::Ran { tally, took } => ("FAILED", *tally, seconds(*took)),
            Outcome::Blocked(_) => ("not run", Tally { passed: 0, failed: 1 }, String::new()),
        };
        println!("{:<15} {result:<8} {:>7} {:>7} {time:>9}", stage.name(), tally.passed, tally.failed);
        sum += tally;
    }
    println!("{:<15} {:<8} {:>7} {:>7} {:>9}\n", "total", "", sum.passed, sum.failed, seconds(clock::since(started)));
    // CI shows only the end of the output.
    for failure in runner.failures() {
        println!("failed: {failure}");
    }
    println!("{} passed, {} failed", sum.passed, sum.failed);
    let good = sum.failed == 0 && sum.passed > 0 && !interrupt.is_cancelled();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a benchmark with the flag `--kubeconfig` of a new kind cluster, which has the images of the stage `e2e`.
pub(crate) async fn on_a_cluster(
    workspace: &Workspace,
    name: &str,
    program: &Path,
    args: &[&str],
    interrupt: &CancellationToken,
) -> anyhow::Result<()> {
    prerequisites::ensure(workspace, &[Stage::Tools, Stage::E2e])?;
    let runner = Runner::new(workspace, true, interrupt)?;
    let tally = cluster::run(name, &runner, Step::new(program, args)).await;
    ensure!(tally.failed == 0, "{name} failed");
    Ok(())
}

impl Outcome {
    fn is_success(&self) -> bool {
        matches!(self, Self::Ran { tally, .. } if tally.failed == 0)
    }
}

fn line(stage: Stage, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ran { tally, took } => {
            let result = if tally.failed == 0 { "ok" } else { "FAILED" };
            format!("{:<15} {result:<8} {:>9}   {tally}", stage.name(), seconds(*took))
        }
        Outcome::Blocked(needed) => format!("{:<15} not run: it needs {}, which failed", stage.name(), needed.name()),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
