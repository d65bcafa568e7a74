//! The tables, charts and aims of the gateways.

use super::{CONTENDERS, Sample};
use crate::{
    report::{Bars, Cell, Part},
    rounds::{Figure, Rounds},
    stats,
};

const fn less(title: &'static str, unit: &'static str, of: fn(&Sample) -> f64) -> Figure<Sample> {
    Figure { title, unit, of, more_is_better: false }
}

const FIGURES: [Figure<Sample>; 5] = [
    Figure { more_is_better: true, ..less("throughput", "requests a second", |sample| sample.per_second) },
    less("latency, P50", "ms", |sample| sample.p50),
    less("latency, P95", "ms", |sample| sample.p95),
    less("latency, P99", "ms", |sample| sample.p99),
    less("CPU per request", "µs", |sample| sample.cpu),
];

const OURS: usize = CONTENDERS.len() - 1;

/// Writes the cases of the closed loop, and the cases with a fixed rate, in which all gateways have the same throughput.
pub(super) fn write(cases: &Rounds<Sample>, steady: &Rounds<Sample>, part: &mut Part<'_>) {
    let sets = [("", cases, &FIGURES[..]), ("at a fixed rate, ", steady, &FIGURES[1..])];
    let each = || sets.into_iter().flat_map(|(of, cases, figures)| figures.iter().map(move |it| (of, cases, it)));
    for (of, cases, figure) in each() {
        aim(of, cases, figure, part);
    }
    for (of, cases, figure) in each() {
        table(of, cases, figure, part);
    }
    for connections in [100, 800] {
        let end = format!("{connections} connections");
        let named = cases.cases.iter().enumerate().filter_map(|(case, name)| Some((case, name.strip_suffix(&end)?)));
        let bars = named.flat_map(|(case, short)| {
            let short = short.trim_end_matches(", ").replace(" addresses", "");
            cases.bars(case, FIGURES[0].of).map(move |(name, median)| (format!("{name}: {short}"), median))
        });
        let title = format!("gateways, requests a second, {end}");
        part.bars(Bars::new(format!("throughput-{connections}"), title, "requests a second, more is better", bars));
    }
}

fn table(of: &str, cases: &Rounds<Sample>, figure: &Figure<Sample>, part: &mut Part<'_>) {
    let title = format!("gateways, {of}{}, {}", figure.title, figure.unit);
    let mut table = cases.by_case(title, "case", figure.of);
    table.columns.extend(CONTENDERS[..OURS].iter().map(|peer| format!("as good as {peer}")));
    for (case, row) in table.rows.iter_mut().enumerate() {
        row.cells.extend((0..OURS).map(|peer| Cell::Ratio { ratio: cases.times_as_good(case, [OURS, peer], figure) }));
    }
    part.table(table);
}

fn aim(of: &str, cases: &Rounds<Sample>, figure: &Figure<Sample>, part: &mut Part<'_>) {
    let mut behind = Vec::new();
    let mut least = f64::INFINITY;
    for (case, case_name) in cases.cases.iter().enumerate() {
        for (peer, name) in CONTENDERS[..OURS].iter().enumerate() {
            let ratio = cases.times_as_good(case, [OURS, peer], figure);
            least = least.min(ratio);
            if ratio <= 1.0 {
                behind.push(format!("{} times as good as {name} ({case_name})", stats::figure(ratio)));
            }
        }
    }
    let found =
        if behind.is_empty() { format!("at least {} times as good", stats::figure(least)) } else { behind.join("; ") };
    part.aim(&format!("{of}{}: ahead of both gateways in every case", figure.title), found, behind.is_empty());
}
