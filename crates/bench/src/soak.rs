//! Runs a mixed load on one agent for some minutes: clients that connect, disconnect and misbehave, snapshots that
//! change constantly, new keys all the time, and an app that restarts. It detects growth of memory, descriptors or
//! counts.
//!
//! Each kind of client checks its results, and every verdict has a figure, so that a run cannot pass without checks.

mod agent;
mod app;
mod clients;
mod samples;
mod snapshots;
mod tally;
mod verdict;

use std::{path::Path, process::Command, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::task::LocalSet;
use tokio_util::sync::CancellationToken;

use self::{agent::SoakedAgent, app::App, clients::Target, samples::Sample, snapshots::Pushed};
use crate::{clock, report::Report};

/// The minutes of a complete run, whose results are written to docs/benchmarks.
const WHOLE: u64 = 30;
const SAMPLES_AT_LEAST: u32 = 30;
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
const RESTART_EVERY: Duration = Duration::from_secs(20);
/// The longest time in which the agent must release all resources after all clients have disconnected.
const REST: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

const ABOUT: &str = "\
One agent with two workers and an app that restarts every 20 s. All kinds of clients in the table below use the agent \
at the same time, on the same machine. A round is everything that a client of a kind does once. A round may fail if \
the app was down or restarted during it, and counts as *app away*. The agent gets a snapshot twice a second. Snapshots \
add, remove and retune rules, and every fifth snapshot is invalid and must be refused. Timeouts are shorter than the \
defaults (head and stall 5 s, idle 10 s), so that they occur often. At the end all clients leave and the app stops. \
The test then waits until the agent has released everything.";

const METHOD: &str = "Memory is the agent's resident set; CPU is of one core.";

/// Run every kind of load at the same time, and measure the resources of the agent.
#[derive(clap::Args)]
pub(crate) struct SoakArgs {
    /// Duration in minutes; a run below 30 only tests the soak, and writes to target/weir/benchmarks
    #[arg(long, default_value_t = WHOLE, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Additional flags for the agent
    #[arg(last = true)]
    agent: Vec<String>,
}

/// The observations of a run.
struct Outcome {
    samples: Vec<Sample>,
    /// The sample before the first client connected. `after` is the one after all clients had disconnected.
    before: Sample,
    after: Sample,
    /// The time until the agent had released all resources. None if it did not in time.
    rested_after: Option<Duration>,
    clients: Vec<tally::Kind>,
    exact: Vec<clients::Held>,
    pushed: Pushed,
    restarts: u64,
    ended: agent::Ended,
}

impl SoakArgs {
    /// Returns true if every aim was met.
    pub(crate) fn run(self) -> anyhow::Result<bool> {
        let quick = self.minutes < WHOLE;
        let mut report = Report::new("soak", "Soak", ABOUT, quick)?;
        report.written_by("cargo xtask soak", METHOD);
        report.add_versions([("weir", revision()), ("flags of the agent", flags(&self.agent))]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        let length = Duration::from_secs(60 * self.minutes);
        let outcome = LocalSet::new().block_on(&runtime, soak(length, &self.agent))?;
        let good = verdict::write(&outcome, length, &mut report)?;
        report.write(&crate::default_out(quick))?;
        Ok(good)
    }
}

async fn soak(length: Duration, flags: &[String]) -> anyhow::Result<Outcome> {
    let folder = tempfile::tempdir().context("make a folder for the agent's log")?;
    let app = App::start().await?;
    let agent = SoakedAgent::start(app.address(), flags, folder.path())?;
    let target = Arc::new(Target::new(agent.proxy(), app.changes()));
    let mut pusher = snapshots::Pusher::new(agent.control());
    let started = clock::now();
    pusher.first().await?;
    let before = agent.sample(started).await?;

    let stop = CancellationToken::new();
    let crowd = clients::start(&target, started, &stop);
    let pushing = tokio::task::spawn_local(pusher.run(stop.clone()));
    let restarting = tokio::task::spawn_local(app.keep_restarting(RESTART_EVERY, stop.clone()));
    let every = SAMPLE_EVERY.min(length / SAMPLES_AT_LEAST);
    let mut ticks = tokio::time::interval(every);
    ticks.tick().await;
    let mut samples = Vec::new();
    while clock::since(started) < length {
        ticks.tick().await;
        let sample = agent.sample(started).await.context("the agent does not answer")?;
        eprintln!("soak: {sample}");
        samples.push(sample);
    }

    stop.cancel();
    let (clients, exact) = crowd.leave().await?;
    let pushed = pushing.await.context("the task that sends snapshots panicked")?;
    let restarts = restarting.await.context("the task that restarts the app panicked")?;
    let gone = clock::now();
    let mut after = agent.sample(started).await?;
    while !after.is_at_rest(&before) && clock::since(gone) < REST {
        tokio::time::sleep(LOOK).await;
        after = agent.sample(started).await?;
    }
    let rested_after = after.is_at_rest(&before).then(|| clock::since(gone));
    let ended = agent.end()?;
    Ok(Outcome { samples, before, after, rested_after, clients, exact, pushed, restarts, ended })
}

/// Describes the built commit, and whether the checkout has changes.
fn revision() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(Path::new(env!("CARGO_MANIFEST_DIR"))).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit} with changes"),
        (None, _) => "not a checkout".to_owned(),
    }
}

fn flags(more: &[String]) -> String {
    if more.is_empty() { "defaults".to_owned() } else { format!("`{}`", more.join(" ")) }
}
