//! Checks that every query of every board, as Grafana would send it, finds data.

use std::{collections::BTreeMap, time::Duration};

use super::{
    boards,
    grafana::Kind,
    prometheus::{Prometheus, Series},
};
use crate::clock;

/// The values of the dashboards' variables: the name, the value on the page, and the value in queries.
pub(super) const CHOSEN: [(&str, &str, &str); 5] = [
    ("cluster", "All", ".*"),
    ("namespace", "default", "default"),
    ("policy", "checkout", "checkout"),
    ("rule", "All", ".+"),
    ("pod", "All", ".+"),
];

/// The seconds between the values of a line, and between bars.
pub(super) const STEP: u32 = 1;
pub(super) const BAR: u32 = 5;
/// The seconds between scrapes.
pub(super) const SCRAPE: u32 = 1;
/// The time range of the dashboards in seconds.
pub(super) const RANGE: u32 = 35;

/// A query, and the panel, variable or annotation to which it belongs.
struct Question {
    place: String,
    expr: String,
}

/// Repeats all queries until each of them has found data. Returns false if some have found none before the deadline.
pub(super) async fn answered(prometheus: &Prometheus, patience: Duration, pause: Duration) -> bool {
    let mut open: Vec<_> = questions();
    let all = open.len();
    let mut reasons = BTreeMap::new();
    let deadline = clock::now() + patience;
    while !open.is_empty() && clock::now() < deadline {
        let mut left = Vec::new();
        for question in open {
            match prometheus.query(&question.expr).await {
                Ok(series) if series.iter().any(is_a_number) => continue,
                Ok(series) => {
                    let found = if series.is_empty() { "nothing" } else { "no number" };
                    reasons.insert(question.place.clone(), format!("finds {found}: {}", question.expr));
                }
                Err(error) => {
                    reasons.insert(question.place.clone(), format!("{error:#}: {}", question.expr));
                }
            }
            left.push(question);
        }
        open = left;
        tokio::time::sleep(pause).await;
    }
    for question in &open {
        println!("FAILED {}: {}", question.place, reasons[&question.place]);
    }
    println!("{} of {all} queries found data", all - open.len());
    open.is_empty()
}

/// Lists every query that Grafana would send.
fn questions() -> Vec<Question> {
    let mut all = Vec::new();
    for board in boards() {
        for panel in board.panels() {
            for query in &panel.queries {
                let place = format!("{}: {}: {}", board.uid, panel.title, query.legend);
                let expr = fill(&board.written(&query.expr), if panel.has_intervals() { BAR } else { STEP });
                // Some queries find data only during an event, so this checks the last five minutes.
                let expr = match &panel.kind {
                    Kind::Bars if !panel.is_zero_in_demo => format!("max_over_time(({expr})[5m:1s]) > 0"),
                    _ if panel.is_over_time() => format!("last_over_time(({expr})[5m:1s])"),
                    _ => expr,
                };
                all.push(Question { place, expr });
            }
        }
        for variable in &board.variables {
            let place = format!("{}: variable {}", board.uid, variable.name);
            let inner = variable.query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (series, label) = inner.and_then(|inner| inner.rsplit_once(", ")).expect("label_values(series, label)");
            all.push(Question { place, expr: format!("count by ({label}) ({})", fill(series, STEP)) });
        }
        if let Some(annotation) = &board.annotation {
            let place = format!("{}: annotation {}", board.uid, annotation.name);
            // The annotation finds data only at the time of the change, so this checks the time before, too.
            all.push(Question {
                place,
                expr: format!("max_over_time(({})[5m:1s])", fill(&board.written(&annotation.expr), STEP)),
            });
        }
    }
    all
}

/// Replaces variables by values, as Grafana does for values that are `step` seconds apart.
pub(super) fn fill(expr: &str, step: u32) -> String {
    let rate_interval = (step + SCRAPE).max(4 * SCRAPE);
    let grafanas = [("__rate_interval", rate_interval), ("__interval", step), ("__range", RANGE)];
    let grafanas = grafanas.map(|(name, seconds)| (name, format!("{seconds}s")));
    let chosen = CHOSEN.map(|(name, _, value)| (name, value.to_owned()));
    chosen
        .into_iter()
        .chain(grafanas)
        .fold(expr.to_owned(), |expr, (name, value)| expr.replace(&format!("${name}"), &value))
}

fn is_a_number(series: &Series) -> bool {
    series.value.as_ref().is_some_and(|(_, value)| value.parse::<f64>().is_ok_and(f64::is_finite))
}
