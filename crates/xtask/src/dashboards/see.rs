//! Whether the alerts fire and the dashboards show anything: promtool runs the alerts' tests; then a real Prometheus scrapes a real operator and agents under load, and is asked
//! every query of every panel, variable and annotation.
//!
//! A query that finds nothing is a fault, whatever the reason: a name that changed, a label that is not there, a function
//! that does not fit.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use tokio::{process::Command, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    boards, pictures,
    prometheus::{Prometheus, Series, free_port},
};
use crate::{
    bench::finish,
    debian::{self, Need},
    demo::{Cast, Screen},
    workspace::Workspace,
};

const NEEDS: [Need; 2] = [
    ("prometheus", "prometheus", "scrapes the demo and answers the dashboards' queries"),
    ("promtool", "prometheus", "tests the alerts"),
];

/// The rules of the alerts and their tests, below the chart.
const ALERTS: &str = "charts/weir/alerts";
const PROMTOOL: [&[&str]; 2] =
    [&["check", "rules", "weir.yaml"], &["test", "rules", "weir.test.yaml", "sizing.test.yaml"]];

/// What is put under load.
const POLICIES: &str = "crates/xtask/src/dashboards/policies";

/// Until every query must have found something: several scrapes, and a change in the middle.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much of the load is before the change.
const BEFORE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(500);

/// Values of the dashboards' variables here.
const VARIABLES: [(&str, &str); 5] =
    [("$__rate_interval", "5s"), ("$namespace", "default"), ("$policy", "checkout"), ("$rule", ".+"), ("$pod", ".+")];

/// A query and whose it is.
struct Question {
    place: String,
    expr: String,
}

pub(super) async fn run(workspace: &Workspace, draw: bool, interrupt: &CancellationToken) -> anyhow::Result<ExitCode> {
    if !debian::ensure("dashboards", NEEDS, interrupt).await? {
        return Ok(ExitCode::from(2));
    }
    for args in PROMTOOL {
        let mut promtool = Command::new("promtool");
        promtool.args(args).current_dir(workspace.root().join(ALERTS));
        if finish("promtool", &mut promtool, interrupt).await? != Some(0) {
            return Ok(ExitCode::FAILURE);
        }
    }
    let mut cast = Cast::new(workspace, POLICIES)?;
    let result = tokio::select! {
        biased;
        () = interrupt.cancelled() => Err(anyhow::anyhow!("interrupted")),
        result = look(workspace, &mut cast, draw) => result,
    };
    if let Err(error) = &result
        && !interrupt.is_cancelled()
    {
        Screen::new(false).failed(error, &cast.last_words());
    }
    cast.stop().await;
    Ok(if let Ok(true) = result { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether every query found something.
async fn look(workspace: &Workspace, cast: &mut Cast, draw: bool) -> anyhow::Result<bool> {
    cast.build(&Screen::new(false)).await?;
    let operator = free_port()?;
    cast.start(Some(operator)).await?;
    let prometheus = Prometheus::start(workspace, cast, operator)?;
    let seconds = (PATIENCE + BEFORE).as_secs().to_string();
    let steady = ["--rate", "400", "--duration", &seconds, "--vary-header", "x-api-key:20"];
    cast.keep_loading("load", "/", &steady)?;
    cast.keep_loading("probes", "/healthz", &["--rate", "5", "--duration", &seconds])?;
    cast.keep_loading("reports", "/reports", &["--rate", "40", "--duration", &seconds, "--connections", "100"])?;
    // Faster than Prometheus would find out by itself.
    let started = Instant::now();
    while !prometheus.is_ready().await {
        anyhow::ensure!(started.elapsed() < PATIENCE, "Prometheus is not ready after {} s", PATIENCE.as_secs());
        tokio::time::sleep(POLL).await;
    }
    tokio::time::sleep_until(started + BEFORE).await;
    let (text, limit) = cast.policy.read()?;
    let (changed, _) = cast.policy.with_requests(&text, limit.requests * 3 / 2)?;
    let took = cast.change(&changed).await?;
    println!("the limit was changed under load, in force everywhere after {:.1} ms", took.as_secs_f64() * 1e3);

    let mut open: Vec<_> = questions();
    let all = open.len();
    let mut reasons = BTreeMap::new();
    let deadline = Instant::now() + PATIENCE;
    while !open.is_empty() && Instant::now() < deadline {
        let mut left = Vec::new();
        for question in open {
            match prometheus.query(&question.expr).await {
                Ok(series) if series.iter().any(is_a_number) => {}
                Ok(series) => {
                    let found = if series.is_empty() { "nothing" } else { "no number" };
                    reasons.insert(question.place.clone(), format!("finds {found}: {}", question.expr));
                    left.push(question);
                }
                Err(error) => {
                    reasons.insert(question.place.clone(), format!("{error:#}: {}", question.expr));
                    left.push(question);
                }
            }
        }
        open = left;
        tokio::time::sleep(POLL).await;
    }
    for question in &open {
        println!("FAILED {}: {}", question.place, reasons[&question.place]);
    }
    println!("{} of {all} queries found something", all - open.len());
    if draw {
        // As much from after the change as from before it.
        tokio::time::sleep_until(started + 3 * BEFORE).await;
        pictures::draw(workspace, &prometheus, fill).await?;
    }
    Ok(open.is_empty())
}

/// Every query that a reader's Grafana would send.
fn questions() -> Vec<Question> {
    let mut all = Vec::new();
    for board in boards() {
        for panel in board.panels() {
            for query in &panel.queries {
                let place = format!("{}: {}: {}", board.uid, panel.title, query.legend);
                all.push(Question { place, expr: fill(query.expr) });
            }
        }
        for variable in board.variables {
            let place = format!("{}: variable {}", board.uid, variable.name);
            let inner = variable.query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (series, label) = inner.and_then(|inner| inner.rsplit_once(", ")).expect("label_values(series, label)");
            all.push(Question { place, expr: format!("count by ({label}) ({})", fill(series)) });
        }
        if let Some(annotation) = &board.annotation {
            let place = format!("{}: annotation {}", board.uid, annotation.name);
            // At the moment of the change, whenever that was.
            all.push(Question { place, expr: format!("max_over_time(({})[5m:1s])", fill(annotation.expr)) });
        }
    }
    all
}

fn fill(expr: &str) -> String {
    VARIABLES.iter().fold(expr.to_owned(), |expr, (name, value)| expr.replace(name, value))
}

fn is_a_number(series: &Series) -> bool {
    series.value.as_ref().is_some_and(|(_, value)| value.parse::<f64>().is_ok_and(f64::is_finite))
}
