//! `cargo xtask demo`: shows and measures the main use of Weir, without a cluster.
//!
//! The demo runs an app, two agents in front of it, an operator with a folder of YAML, and a load above the limit.
//! After a few seconds, it changes the limit in the file. All figures are measured from outside: they are the counts of
//! the load and the reports of the agents. The demo must never copy a figure from the policy that it can measure. At
//! its end, it must stop all processes.

mod agents;
mod cast;
mod policy;
mod rates;
mod record;
mod screen;
mod style;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use tokio::{
    io::{BufReader, Lines},
    process::ChildStdout,
};
use tokio_util::sync::CancellationToken;

use self::rates::{Line, Rates};
pub(crate) use self::{
    agents::{Agent, get},
    cast::Cast,
    screen::Screen,
};
use crate::{clock, workspace::Workspace};

/// The time between two reports of the load. The measured windows consist of whole reports.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// The duration of the load.
const LENGTH: Duration = Duration::from_secs(18);
/// The time at which the limit is changed.
const CHANGE: Duration = Duration::from_secs(8);
/// The time that is not measured at the start of each window: the initial burst, and the second after the change.
const SETTLE: Duration = Duration::from_secs(1);
/// The load, as a multiple of the limit before the change.
const OVERLOAD: f64 = 4.0;
/// The largest accepted difference between a measured rate and the policy.
const TOLERANCE: f64 = 0.05;

#[derive(clap::Args)]
pub(crate) struct DemoArgs {
    /// Keep running after the summary, and print commands to try
    #[arg(long)]
    keep: bool,
    /// Print one line of JSON on standard output, and everything else on standard error
    #[arg(long)]
    json: bool,
    /// Write the output, line by line with its timing, to this SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "keep")]
    record: Option<PathBuf>,
}

/// The figures of a run. Rates are requests per second, summed over all agents.
#[derive(Serialize)]
struct Figures {
    offered: u64,
    allowed: u64,
    limited: u64,
    limit_before: f64,
    limit_after: f64,
    measured_before: f64,
    measured_after: f64,
    propagation_ms: f64,
    agents: usize,
}

pub(crate) async fn run(
    workspace: &Workspace,
    args: DemoArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let mut screen = Screen::new(args.json);
    if args.record.is_some() {
        screen.record();
    }
    let mut cast = Cast::new(workspace, "examples/demo")?;
    let result = tokio::select! {
        biased;
        () = interrupt.cancelled() => Err(anyhow::anyhow!("interrupted")),
        result = play(&mut cast, &screen, args.json) => result,
    };
    if let Err(error) = &result
        && !interrupt.is_cancelled()
    {
        screen.failed(error, &cast.log_tails());
    }
    if args.keep && result.is_ok() {
        screen.try_by_hand(&cast.agents, &cast.policy);
        tokio::select! {
            () = interrupt.cancelled() => {}
            name = cast.first_to_end() => screen.note(&format!("{name} ended")),
        }
    }
    cast.stop().await;
    // The recording of a failed run is not written.
    if let (Some(file), Some(recording), Ok(true)) = (&args.record, screen.recording(), &result) {
        let file = workspace.root().join(file);
        std::fs::write(&file, recording.svg("cargo xtask demo", " are up after "))
            .with_context(|| format!("write {}", file.display()))?;
        eprintln!("{} written", file.display());
    }
    Ok(match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) | Err(_) => ExitCode::FAILURE,
    })
}

/// Runs the demo. Returns true if the measurements agree with the policy.
async fn play(cast: &mut Cast, screen: &Screen, json: bool) -> anyhow::Result<bool> {
    cast.build(screen).await?;
    let started = clock::now();
    cast.start(&[]).await?;
    screen.note(&format!(
        "app, {} agents and operator are up after {:.1} s; policy: {}",
        cast.agents.len(),
        clock::since(started).as_secs_f64(),
        cast.policy.path.display()
    ));

    let (text, before) = cast.policy.read()?;
    let (changed, after) = cast.policy.with_requests(&text, raised(before.requests))?;
    #[expect(clippy::cast_precision_loss, reason = "two agents")]
    let together = cast.agents.len() as f64;
    let (limit_before, limit_after) = (before.per_second() * together, after.per_second() * together);
    let offered_rate = limit_before * OVERLOAD;
    screen.note(&format!(
        "limit: {before} for each agent, {} together; load: {} requests/s for {} s\n",
        rates::show(limit_before),
        rates::show(offered_rate),
        LENGTH.as_secs(),
    ));

    screen.header();
    let (mut load, mut lines) = cast.start_load(offered_rate)?;
    let mut rates = Rates::default();
    let mut propagation = None;
    let mut next_row = Duration::from_secs(1);
    let summary = loop {
        let interval = match next_line(&mut lines).await? {
            Line::Summary(summary) => break summary,
            Line::Interval(interval) => interval,
        };
        rates.push(interval);
        if rates.now() + REPORT_EVERY / 2 >= next_row {
            screen.row(next_row.as_secs(), &rates.latest_second(), &cast.enforcement().await);
            next_row += Duration::from_secs(1);
        }
        if propagation.is_none() && rates.now() + REPORT_EVERY / 2 >= CHANGE {
            let took = cast.change(&changed).await?;
            screen.changed(&before, &after, took, cast.agents.len());
            propagation = Some(took);
        }
    };
    // The exit code of the load is 1 if it missed its schedule. It is ignored, because the count of unsent requests is
    // more precise.
    load.wait().await?;
    let propagation = propagation.context("the load ended before the change")?;
    ensure!(
        summary.errors == 0,
        "{} requests got no answer: {}",
        summary.errors,
        summary.first_error.unwrap_or_default()
    );
    if summary.unsent > 0 {
        screen
            .note(&format!("{} requests could not be sent on schedule, because this machine is busy", summary.unsent));
    }
    let enforced = cast.reported(&cast.enforcement().await).await?;

    let figures = Figures {
        offered: summary.offered,
        allowed: summary.allowed,
        limited: summary.limited,
        limit_before,
        limit_after,
        measured_before: rates.allowed_per_second(SETTLE, CHANGE).context("no rate was measured before the change")?,
        measured_after: rates
            .allowed_per_second(CHANGE + SETTLE + REPORT_EVERY, LENGTH)
            .context("no rate was measured after the change")?,
        propagation_ms: (propagation.as_secs_f64() * 1e4).round() / 10.0,
        agents: cast.agents.len(),
    };
    let agrees = figures.agree();
    screen.summary(&figures, &enforced, agrees);
    if json {
        println!("{}", serde_json::to_string(&figures).context("write the figures")?);
    }
    Ok(agrees)
}

/// Returns one and a half times the number, and at least one more.
fn raised(requests: i64) -> i64 {
    requests + (requests / 2).max(1)
}

impl Figures {
    fn agree(&self) -> bool {
        let near = |measured: f64, limit: f64| (measured - limit).abs() <= limit * TOLERANCE;
        near(self.measured_before, self.limit_before) && near(self.measured_after, self.limit_after)
    }
}

async fn next_line(lines: &mut Lines<BufReader<ChildStdout>>) -> anyhow::Result<Line> {
    match lines.next_line().await.context("read from the load")? {
        Some(line) => Line::parse(&line),
        None => bail!("the load ended without a summary"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(measured_before: f64, measured_after: f64) -> Figures {
        Figures {
            offered: 14_400,
            allowed: 4500,
            limited: 9900,
            limit_before: 200.0,
            limit_after: 300.0,
            measured_before,
            measured_after,
            propagation_ms: 12.5,
            agents: 2,
        }
    }

    #[test]
    fn five_percent_is_the_most_either_rate_may_be_off() {
        assert!(figures(200.0, 300.0).agree());
        assert!(figures(190.0, 315.0).agree());
        assert!(!figures(189.0, 300.0).agree());
        assert!(!figures(211.0, 300.0).agree());
        assert!(!figures(200.0, 284.0).agree());
        assert!(!figures(200.0, 316.0).agree());
        assert!(!figures(200.0, f64::NAN).agree());
    }

    #[test]
    fn the_line_for_programs_has_exactly_the_promised_keys() {
        let line = serde_json::to_string(&figures(200.0, 300.0)).expect("plain data can be serialized");
        assert_eq!(
            line,
            r#"{"offered":14400,"allowed":4500,"limited":9900,"limit_before":200.0,"limit_after":300.0,"measured_before":200.0,"measured_after":300.0,"propagation_ms":12.5,"agents":2}"#
        );
    }
}
