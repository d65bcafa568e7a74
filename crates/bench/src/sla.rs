//! Measures a service with a fixed capacity behind limits that let requests wait, under an increasing load.

mod arrivals;
mod guards;
mod slots;

use std::time::Duration;

use tokio::runtime::Builder;

pub(crate) use self::slots::Slots;
use self::{
    arrivals::{Step, run_step},
    guards::NAMES,
};
use crate::{
    report::{Cell, Lines, Report, Row, Series, Table},
    stats::{any_quantile_ms as quantile, figure, quantile_ms},
};

const ABOUT: &str = "\
A service that processes 10 requests at once, each in 25 ms, and drops a request after 500 ms. Requests arrive evenly \
at 25 to 600 a second, even if earlier requests still wait. Each step starts with an idle service. *Unlimited* sends \
all requests to the service. *Ticker* admits one request for each of 425 ticks a second, and saves up to 10 ticks. \
*Ticker, 75 ms* also drops a request after a wait of that time. *weir* is `ThroughputLayer` with a token bucket of 425 \
a second, a burst of 10, and a wait of at most 75 ms. All four run in parallel with the same rate of arrivals, each with its \
own service. Ten slots of 25 ms can process 400 requests a second, so at 425 a second a step of 3 s leaves 75 requests \
in the service's own queue. Each step runs once, and its quantiles are of 75 to 1,800 requests.";

/// The rate in requests per second up to which all requests must be served in time.
const CARRIED: u32 = 425;
const P95: f64 = 275.0;

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let (rates, length): (Vec<u32>, _) = if quick {
        (vec![100, 425, 600], Duration::from_millis(500))
    } else {
        ((1..=24).map(|step| step * 25).collect(), Duration::from_secs(3))
    };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let mut steps = Vec::new();
    for rate in rates {
        eprintln!("sla: {rate} requests a second for {length:?}");
        steps.push(run_step(&runtime, rate, length));
    }
    let mut report = Report::new("sla", "Service levels", ABOUT, quick)?;
    aims(&steps, &mut report);
    ratios(&steps, &mut report);
    tables(&steps, &mut report);
    charts(&steps, &mut report);
    Ok(report)
}

fn aims(steps: &[Step], report: &mut Report) {
    let ours = NAMES.len() - 1;
    let below = || steps.iter().filter(|step| step.rate <= CARRIED).map(|step| &step.guards[ours]);
    let failed: usize = below().map(|guard| guard.failed.len()).sum();
    report.aim(format!("weir: every request is served up to {CARRIED}/s"), format!("{failed} failed"), failed == 0);
    let p95 = below().map(|guard| quantile_ms(&guard.served, 950)).fold(0.0, f64::max);
    report.aim(format!("weir: P95 under {P95} ms up to {CARRIED}/s"), format!("{} ms at most", figure(p95)), p95 < P95);
    let above = steps.iter().filter(|step| step.rate > CARRIED).map(|step| &step.guards[ours].failed);
    let p99 = above.map(|failed| quantile_ms(failed, 990)).fold(0.0, f64::max);
    report.aim(
        format!("weir: above {CARRIED}/s refusals within 1 ms at P99"),
        format!("{} ms at most", figure(p99)),
        p99 < 1.0,
    );
}

/// A reported figure of a contender at a step: its name, title, unit and value.
type Figure = (&'static str, &'static str, &'static str, fn(&arrivals::Durations) -> Option<f64>);

const FIGURES: [Figure; 6] = [
    ("success", "Success rate", "% of requests", |durations| Some(durations.success())),
    ("served-p50", "Successes, P50", "ms", |durations| quantile(&durations.served, 500)),
    ("served-p95", "Successes, P95", "ms", |durations| quantile(&durations.served, 950)),
    ("failed-p50", "Failures, P50", "ms", |durations| quantile(&durations.failed, 500)),
    ("failed-p95", "Failures, P95", "ms", |durations| quantile(&durations.failed, 950)),
    ("failed-p99", "Failures, P99", "ms", |durations| quantile(&durations.failed, 990)),
];

/// Adds the ratios at the highest load. More is better: the success rate is divided by that of the peer, and the times
/// of the peer are divided by those of Weir.
fn ratios(steps: &[Step], report: &mut Report) {
    let Some(step) = steps.last() else { return };
    let Some((ours, theirs)) = step.guards.split_last() else { return };
    let rows = FIGURES.iter().map(|(name, title, _, figure)| {
        let ratio = |durations| {
            let (mine, other) = (figure(ours)?, figure(durations)?);
            Some(if *name == "success" { mine / other } else { other / mine })
        };
        let cells = theirs.iter().map(|durations| ratio(durations).map_or(Cell::None, |ratio| Cell::Ratio { ratio }));
        Row::new(*title, cells)
    });
    let (title, columns) = (format!("Ratios at {} requests a second", step.rate), NAMES.into_iter().take(theirs.len()));
    report.table(Table::new(title, "weir: how many times as good as", columns, rows));
}

fn tables(steps: &[Step], report: &mut Report) {
    for (_, title, unit, figure) in FIGURES {
        let rows = steps.iter().map(|step| {
            let cells = step.guards.iter().map(|durations| figure(durations).map_or(Cell::None, Cell::Number));
            Row::new(step.rate.to_string(), cells)
        });
        report.table(Table::new(format!("{title}, {unit}"), "requests a second", NAMES, rows));
    }
}

fn charts(steps: &[Step], report: &mut Report) {
    // The success rate has no chart, because the lines would overlap, and the table shows the figures.
    for (name, title, unit, figure) in FIGURES.into_iter().filter(|(name, ..)| *name != "success") {
        let series = NAMES.iter().enumerate().map(|(place, contender)| Series {
            name: (*contender).to_owned(),
            points: steps
                .iter()
                .filter_map(|step| Some((f64::from(step.rate), figure(&step.guards[place])?)))
                .collect(),
        });
        report.chart(Lines::new(name, title, ["requests a second", unit], series));
    }
}
