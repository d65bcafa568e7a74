//! Tests that alerts fire and dashboards show data. promtool runs the tests of the alerts. Then a real Prometheus
//! scrapes a real operator and agents under load. It answers every query of every panel, variable and annotation, and
//! Grafana's panels render the answers.
//!
//! A query that finds no data is a fault: a metric was renamed, a label is missing, or a function is wrong. A panel is
//! faulty if it is empty, cuts off text, or uses a colour with another meaning.

use std::{collections::BTreeMap, fs, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::{process::Command, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    bars, boards,
    grafana::{Board, Colour},
    headroom, numbers,
    page::{Given, Mark, Page},
    prometheus::{Prometheus, Span},
    questions::{BAR, CHOSEN, RANGE, STEP, answered, fill},
    scene::{self, Scene},
    shown,
};
use crate::{
    children::succeed,
    clock,
    debian::{self, Need},
    demo::{Cast, Screen},
    python::ENVOY,
    workspace::Workspace,
};

const NEEDS: [Need; 8] = [
    ("prometheus", "prometheus", "scrapes the demo and answers the dashboards' queries"),
    ("promtool", "prometheus", "tests the alerts"),
    ("node", "nodejs", "bundles the page of Grafana's panels, and serves it"),
    ("npm", "npm", "installs Grafana's panels"),
    ("chromium", "chromium", "shows the page"),
    ("openssl", "openssl", "makes a certificate for control ports"),
    ("redis-server", "redis-server", "counts limits of scope Shared"),
    ("python3", "python3-venv", "installs Envoy"),
];

/// The alert rules and their tests, below the chart.
const ALERTS: &str = "charts/weir/alerts";
const PROMTOOL: [&[&str]; 2] =
    [&["check", "rules", "weir.yaml"], &["test", "rules", "weir.test.yaml", "sizing.test.yaml"]];

/// The program that `--draw` needs.
const SMALLER: Need = ("pngquant", "pngquant", "reduces the size of the pictures");
const PICTURES: &str = "docs/dashboards";

/// The longest wait until every query finds data: several scrapes, with a change of the policy between them.
const PATIENCE: Duration = Duration::from_secs(60);

/// The duration of the load before the change.
const BEFORE: Duration = Duration::from_secs(15);
/// The duration of the load after the change.
const AFTER: Duration = Duration::from_secs(RANGE as u64 - BEFORE.as_secs());
const POLL: Duration = Duration::from_millis(500);

pub(super) async fn run(workspace: &Workspace, draw: bool, interrupt: &CancellationToken) -> anyhow::Result<ExitCode> {
    let needs = NEEDS.into_iter().chain(draw.then_some(SMALLER));
    debian::ensure("dashboards", needs, interrupt).await?;
    for args in PROMTOOL {
        let mut promtool = Command::new("promtool");
        promtool.args(args).current_dir(workspace.root().join(ALERTS));
        succeed("promtool", &mut promtool, interrupt).await?;
    }
    let mut cast = Cast::new(workspace, scene::POLICIES)?;
    for (name, text) in [
        ("bars", bars::promtool_test()),
        ("headroom", headroom::promtool_test()),
        ("numbers", numbers::promtool_test()),
    ] {
        let test = cast.folder().join(format!("{name}.test.yaml"));
        fs::write(&test, text).with_context(|| format!("write {}", test.display()))?;
        let mut promtool = Command::new("promtool");
        promtool.args(["test", "rules"]).arg(&test);
        succeed("promtool", &mut promtool, interrupt).await?;
    }
    let result = tokio::select! {
        biased;
        () = interrupt.cancelled() => Err(anyhow::anyhow!("interrupted")),
        result = look(workspace, &mut cast, draw, interrupt) => result,
    };
    if let Err(error) = &result
        && !interrupt.is_cancelled()
    {
        Screen::new(false).failed(error, &cast.log_tails());
    }
    cast.stop().await;
    Ok(if let Ok(true) = result { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns true if every query found data, and the page shows all data.
async fn look(
    workspace: &Workspace,
    cast: &mut Cast,
    draw: bool,
    interrupt: &CancellationToken,
) -> anyhow::Result<bool> {
    cast.build(&Screen::new(false)).await?;
    // The page is built before the load, because installing packages can take minutes, and all pictures must show the
    // same short time range.
    let page = Page::build(workspace, interrupt).await?;
    let envoy = ENVOY.install(interrupt).await?.join("envoy");
    let scene = Scene::start(cast, &envoy, interrupt).await?;
    let prometheus = Prometheus::start(workspace, cast, scene.telemetry, &scene.pods())?;
    scene.load(cast, PATIENCE + BEFORE + AFTER)?;
    // Waits until Prometheus is ready, so that no query fails.
    let started = clock::now();
    while !prometheus.is_ready().await {
        ensure!(clock::since(started) < PATIENCE, "Prometheus is not ready after {} s", PATIENCE.as_secs());
        tokio::time::sleep(POLL).await;
    }
    let changed = change(cast, started + BEFORE).await?;
    let answered = answered(&prometheus, PATIENCE, POLL).await;
    tokio::time::sleep_until(changed + AFTER).await;
    let end = prometheus.now().await?;
    let span = Span { start: end - (BEFORE + AFTER).as_secs_f64(), end };
    let mut given = Vec::new();
    let mut faults = Vec::new();
    for board in boards() {
        let (answers, wrong) = answers(&board, &prometheus, &span).await?;
        given.push(answers);
        faults.extend(wrong);
    }
    let pictures = cast.folder().join("pictures");
    fs::create_dir_all(&pictures).with_context(|| format!("make {}", pictures.display()))?;
    faults.extend(shown::faults(&boards(), &page.show(&given, &pictures).await?));
    for fault in &faults {
        println!("FAILED {fault}");
    }
    let panels: usize = boards().iter().map(|board| board.panels().count()).sum();
    println!("Grafana's panels show all {panels} panels in two themes, with {} faults", faults.len());
    if draw {
        keep(workspace, &pictures, interrupt).await?;
    }
    Ok(answered && faults.is_empty())
}

/// Changes the policy at this time. Returns the time at which all agents enforce it.
async fn change(cast: &Cast, at: Instant) -> anyhow::Result<Instant> {
    tokio::time::sleep_until(at).await;
    let (text, limit) = cast.policy.read()?;
    let (changed, _) = cast.policy.with_requests(&text, limit.requests * 3 / 2)?;
    let took = cast.change(&changed).await?;
    println!("the limit was changed under load, in force in all agents after {:.1} ms", took.as_secs_f64() * 1e3);
    Ok(clock::now())
}

/// Sends the queries of a board's file. Returns the answers, and the faults of the board's bars.
async fn answers(board: &Board, prometheus: &Prometheus, span: &Span) -> anyhow::Result<(Given, Vec<String>)> {
    let dashboard: Value = serde_json::from_str(&board.json())?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let (mut answers, mut faults) = (BTreeMap::new(), Vec::new());
    for panel in list(&dashboard["panels"]) {
        let step = if panel["interval"].is_null() { STEP } else { BAR };
        let Some(known) = board.panels().find(|known| panel["title"] == known.title) else { continue };
        for (target, query) in list(&panel["targets"]).iter().zip(&known.queries) {
            let text = |name: &str| target[name].as_str().unwrap_or_default().to_owned();
            let expr = fill(&text("expr"), step);
            let series = if target["range"] == true {
                prometheus.range(&expr, span, step).await?
            } else {
                prometheus.query(&expr).await?
            };
            if let Some((by, counter)) = &query.events {
                let samples = prometheus.query(&fill(&format!("{}[10m]", board.written(counter)), step)).await?;
                let mut wrong = bars::faults(by, &series, &samples, span, step);
                wrong.retain(|fault| !(known.is_zero_in_demo && fault == bars::NOTHING));
                faults.extend(wrong.iter().map(|fault| format!("{}: {}: {fault}", board.uid, panel["title"])));
            }
            answers.insert(format!("{}/{}", panel["id"], text("refId")), series);
        }
    }
    let mut annotations = Vec::new();
    for annotation in list(&dashboard["annotations"]["list"]) {
        let expr = fill(annotation["target"]["expr"].as_str().context("an annotation without a query")?, STEP);
        let found = prometheus.range(&expr, span, STEP).await?;
        let begins = found.iter().filter_map(|series| Some(series.values.first()?.0));
        annotations.extend(begins.filter(|at| *at > span.start).map(|at| Mark { at, color: Colour::Change.id() }));
    }
    let chosen = CHOSEN.map(|(name, seen, _)| (name, seen)).into();
    let (start, end) = (span.start, span.end);
    Ok((Given { dashboard, start, end, step: STEP, bar: BAR, chosen, answers, annotations }, faults))
}

/// Writes the pictures for the manual, reduced to few colours.
async fn keep(workspace: &Workspace, pictures: &Path, interrupt: &CancellationToken) -> anyhow::Result<()> {
    let folder = workspace.root().join(PICTURES);
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for board in boards() {
        for theme in ["light", "dark"] {
            let name = format!("{}-{theme}.png", board.uid);
            let mut pngquant = Command::new("pngquant");
            pngquant.args(["--force", "--strip", "--speed=1", "--nofs", "64", "--output"]);
            pngquant.arg(folder.join(&name)).arg(pictures.join(&name));
            succeed("pngquant", &mut pngquant, interrupt).await?;
            println!("{PICTURES}/{name} written");
        }
    }
    Ok(())
}
